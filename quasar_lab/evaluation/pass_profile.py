"""Where does the time inside a verify pass go: products, attention, norms and rounding, or the rest?

## Idea

A pass runs all its layers in one call of the backend, and that call has no clocks inside: reading one costs as much as
a small op takes. So the ops are timed in passes of their own, the same ops on the same weights in the same order, one
call at a time.

## Choice

Such a pass is slower than a real one, because Python stands between its ops. So what is kept is the *share* of the time
that each part takes. A figure that splits the time of a real pass by these shares says that the split is an estimate.

## What is lost

Rounding cannot be told from the op that it is fused into. An INT8 verifier rounds inside its norms and its SiLU, so
these are one part, and what rounding costs is the time of that part beside the BF16 verifier's.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from quasar_kernels import Backend
from quasar_kernels.threads import single_torch_thread

from quasar_lab.evaluation.origin import Origin, timed_origin
from quasar_lab.models.decoder import Decoder
from quasar_lab.support.errors import InputError
from quasar_lab.support.machine import percentiles
from quasar_lab.support.result import Result, flat, left_out

GROUPS = {
    "products": ("linear_bf16", "linear_w8a8"),
    "attention": ("attend", "rope_append"),
    "rounding": ("rmsnorm", "rmsnorm_quantize", "quantize_rows", "silu_mul", "silu_mul_quantize"),
}
"""Parts of a pass and their ops; "rounding" holds the norms and the SiLU too, which rounding is fused into. What none
of them holds is the part "other": the embedding, and the way from one op to the next."""


@dataclass(frozen=True)
class PassShares(Result):
    """How the time of a pass divides among its parts, by verifier and width."""

    verifier: str
    width: int
    shares: dict[str, float]
    """Part (a group, or "other") → its share of the time; together they are 1."""
    samples: int
    """Passes that the shares are medians over."""


@dataclass(frozen=True, kw_only=True)
class ProfileResult(Result):
    """Shares of the parts of a pass, by verifier and width."""

    parts: list[PassShares]
    context: int
    """Tokens in the cache before the pass."""
    origin: Origin = flat()
    command: str | None = left_out()
    """The command line that measured it."""

    def shares(self, verifier: str, width: int) -> dict[str, float]:
        """Part → share, at the measured width that is nearest to `width`. Raises InputError on another verifier."""
        rows = [row for row in self.parts if row.verifier == verifier]
        if not rows:
            known = ", ".join(dict.fromkeys(row.verifier for row in self.parts))
            raise InputError(f"the parts are of {known or 'nothing'}; accepted: of {verifier}, which made the trace")
        return min(rows, key=lambda row: abs(row.width - width)).shares

    def fewest_samples(self) -> int:
        """The fewest samples that any of the rows is the median of."""
        return min(row.samples for row in self.parts)


class _TimedOps:
    """The ops of a backend, one call at a time, with the seconds spent per group."""

    def __init__(self, ops: Backend):
        self._ops = ops
        self.capabilities = replace(ops.capabilities, plan=False)  # one call of all layers cannot be looked into
        self.seconds = dict.fromkeys(GROUPS, 0.0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        group = next((group for group, ops in GROUPS.items() if name in ops), None)
        return found if group is None else self._timed(group, found)

    def _timed(self, group: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            result = op(*arguments)
            self.seconds[group] += time.perf_counter() - begun
            return result

        return call


def profile_passes(
    verifiers: Sequence[Decoder], widths: Sequence[int], context: int = 256, samples: int = 8
) -> ProfileResult:
    """Per verifier and width: the share of each part in a pass whose ops are timed one by one, medians over `samples`,
    verifiers interleaved.

    Raises InputError on widths that are none or do not fit behind `context` tokens, and on verifiers not on the CPU.
    """
    _check(verifiers, widths, context, samples)
    spent: dict[tuple[str, int], list[dict[str, float]]] = {}
    generator = torch.Generator().manual_seed(0)
    timed = [_with_timed_ops(verifier) for verifier in verifiers]
    caches = [verifier.new_cache(context + max(widths)) for verifier in verifiers]
    for verifier, cache in zip(verifiers, caches, strict=True):
        verifier.forward(_ids(verifier, context, generator), cache, logits="last")
    for sample in range(samples + 1):
        for width in widths:
            ids = _ids(verifiers[0], width, generator)
            for (verifier, ops), cache in zip(timed, caches, strict=True):
                parts = _time_pass(verifier, ops, ids, cache, context)
                if sample:  # the first round warms up
                    spent.setdefault((verifier.name, width), []).append(parts)
    return ProfileResult(
        parts=[PassShares(name, width, _shares(found), samples) for (name, width), found in spent.items()],
        context=context,
        origin=timed_origin(verifiers[0]),
    )


def _check(verifiers: Sequence[Decoder], widths: Sequence[int], context: int, samples: int) -> None:
    """Raises InputError on what cannot be timed."""
    room = min(verifier.context for verifier in verifiers) - context
    if not widths or min(widths) < 1 or max(widths) > room or context < 1 or samples < 1:
        raise InputError(
            f"widths are {list(widths)}, context {context}, samples {samples}; "
            f"accepted: widths in 1…{room}, and 1 or more of the others"
        )
    if any(verifier.device != "cpu" for verifier in verifiers):
        raise InputError("a verifier is not on the CPU; accepted: verifiers on the CPU, whose ops end when they return")


def _with_timed_ops(verifier: Decoder) -> tuple[Decoder, _TimedOps]:
    timed = _TimedOps(verifier.ops)
    ops: Any = timed
    return replace(verifier, ops=ops), timed


def _ids(verifier: Decoder, count: int, generator: torch.Generator) -> list[int]:
    return torch.randint(verifier.vocab, (count,), generator=generator).tolist()


def _time_pass(verifier: Decoder, ops: _TimedOps, ids: list[int], cache: Any, context: int) -> dict[str, float]:
    """Seconds per part of one pass."""
    ops.seconds = dict.fromkeys(GROUPS, 0.0)
    with nullcontext() if verifier.backend == "reference" else single_torch_thread():
        begun = time.perf_counter()
        verifier.forward(ids, cache)
        total = time.perf_counter() - begun
    verifier.rollback(cache, context)
    return {**ops.seconds, "other": total - sum(ops.seconds.values())}


def _shares(found: list[dict[str, float]]) -> dict[str, float]:
    """Part → its median over the samples, as a share of all of them."""
    middle = {part: percentiles([sample[part] for sample in found])[1] for part in found[0]}
    return {part: seconds / sum(middle.values()) for part, seconds in middle.items()}
