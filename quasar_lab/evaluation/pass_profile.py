"""Where does the time inside a verify pass go: products, attention, norms and rounding, or the rest?

A pass runs all its layers in one call of the backend, and that call has no clocks inside: reading one costs as much as
a small op takes. So the ops are timed in passes of their own, the same ops on the same weights in the same order, one
call at a time. Such a pass is slower than a real one (Python stands between its ops), so what is kept is each group's
*share* of the time, and figures that split the time of a real pass by it say that the split is estimated.

What is lost: rounding cannot be told from the op that it is fused into. An INT8 verifier rounds inside its norms and
its SiLU, so these are one group, and what rounding costs is that group's time beside the BF16 verifier's.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from quasar_kernels import Backend
from quasar_kernels.threads import single_torch_thread

from quasar_lab.evaluation.pass_time import threads
from quasar_lab.models.decoder import Decoder
from quasar_lab.support.errors import InputError
from quasar_lab.support.machine import percentiles, stamp

GROUPS = {
    "products": ("linear_bf16", "linear_w8a8"),
    "attention": ("attend", "rope_append"),
    "rounding": ("rmsnorm", "rmsnorm_quantize", "quantize_rows", "silu_mul", "silu_mul_quantize"),
}
"""Parts of a pass and their ops; "rounding" holds the norms and the SiLU too, which rounding is fused into. What none
of them holds is the part "other": the embedding, and the way from one op to the next."""


class _Clocked:
    """The ops of a backend, one call at a time, with the seconds spent per group."""

    def __init__(self, ops: Backend):
        self._ops = ops
        self.capabilities = replace(ops.capabilities, plan=False)  # one call of all layers cannot be looked into
        self.seconds = dict.fromkeys(GROUPS, 0.0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        group = next((group for group, ops in GROUPS.items() if name in ops), None)
        return found if group is None else self._clocked(group, found)

    def _clocked(self, group: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            result = op(*arguments)
            self.seconds[group] += time.perf_counter() - begun
            return result

        return call


def measure(
    verifiers: Sequence[Decoder], widths: Sequence[int], context: int = 256, samples: int = 8
) -> dict[str, Any]:
    """Per verifier and width: the share of each part in a pass whose ops are timed one by one, medians over `samples`,
    verifiers interleaved.

    Raises InputError on widths that are none or do not fit behind `context` tokens, and on verifiers not on the CPU.
    """
    room = min(verifier.context for verifier in verifiers) - context
    if not widths or min(widths) < 1 or max(widths) > room or context < 1 or samples < 1:
        raise InputError(
            f"widths are {list(widths)}, context {context}, samples {samples}; "
            f"accepted: widths in 1…{room}, and 1 or more of the others"
        )
    if any(verifier.device != "cpu" for verifier in verifiers):
        raise InputError("a verifier is not on the CPU; accepted: verifiers on the CPU, whose ops end when they return")
    spent: dict[tuple[str, int], list[dict[str, float]]] = {}
    generator = torch.Generator().manual_seed(0)
    clocked = [_clocked(verifier) for verifier in verifiers]
    caches = [verifier.new_cache(context + max(widths)) for verifier in verifiers]
    for verifier, cache in zip(verifiers, caches, strict=True):
        verifier.forward(_ids(verifier, context, generator), cache, logits="last")
    for sample in range(samples + 1):
        for width in widths:
            ids = _ids(verifiers[0], width, generator)
            for (verifier, clock), cache in zip(clocked, caches, strict=True):
                parts = _pass(verifier, clock, ids, cache, context)
                if sample:  # the first round warms up
                    spent.setdefault((verifier.name, width), []).append(parts)
    first = verifiers[0]
    return {
        "parts": [
            {"verifier": name, "width": width, "shares": _shares(found), "samples": samples}
            for (name, width), found in spent.items()
        ],
        "model": first.identity["model"],
        "context": context,
        "device": first.device,
        "backend": first.backend,
        "threads": threads(first),
        **stamp().to_json(),
    }


def _clocked(verifier: Decoder) -> tuple[Decoder, _Clocked]:
    clock = _Clocked(verifier.ops)
    ops: Any = clock
    return replace(verifier, ops=ops), clock


def _ids(verifier: Decoder, count: int, generator: torch.Generator) -> list[int]:
    return torch.randint(verifier.vocab, (count,), generator=generator).tolist()


def _pass(verifier: Decoder, clock: _Clocked, ids: list[int], cache: Any, context: int) -> dict[str, float]:
    """Seconds per part of one pass."""
    clock.seconds = dict.fromkeys(GROUPS, 0.0)
    with nullcontext() if verifier.backend == "reference" else single_torch_thread():
        begun = time.perf_counter()
        verifier.forward(ids, cache)
        total = time.perf_counter() - begun
    verifier.rollback(cache, context)
    return {**clock.seconds, "other": total - sum(clock.seconds.values())}


def _shares(found: list[dict[str, float]]) -> dict[str, float]:
    """Part → its median over the samples, as a share of all of them."""
    middle = {part: percentiles([sample[part] for sample in found])[1] for part in found[0]}
    return {part: seconds / sum(middle.values()) for part, seconds in middle.items()}
