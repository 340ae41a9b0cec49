"""How fast on a GPU: products beside the bandwidth of a copy, the other ops, and a step without graphs or overlap.

## Idea

A step can be slow because its ops are slow, or because of what lies between them. So each op is timed alone, and beside
it stands how often a step has it (`count`). The sum over all ops is then compared with the step: what is missing in
that sum is launches, gaps and the host.

## Choice

An op is timed in a CUDA graph (`quasar_kernels.op_timing`). BF16, W8A8 and the copy alternate sample by sample, so that
a change of the clock speed meets all of them. The model is that of `random_models`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar, cast

import torch
from quasar_kernels.backend import GraphBackend
from quasar_kernels.op_timing import Bench, product_calls

from quasar_lab.evaluation.gpu_check.random_models import rotation
from quasar_lab.evaluation.gpu_check.results import OpTime, PassTime, ProductTime
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.model_config import ModelConfig
from quasar_lab.support.machine import percentiles, wait_for_device

Key = TypeVar("Key")

PRODUCTS = ("linear_bf16", "linear_w8a8")


def step_context(config: ModelConfig) -> int:
    """Tokens behind which a step is timed."""
    return config.context // 32


def product_shapes(config: ModelConfig) -> dict[str, tuple[int, int, int]]:
    """Name → outputs, inputs, how many there are in a step."""
    shapes = {name: (*shape, config.layers) for name, shape in config.projection_shapes().items()}
    return {**shapes, "lm_head": (config.vocab, config.hidden, 1)}


def product_times(
    bench: Bench, config: ModelConfig, widths: Sequence[int], samples: int, bandwidth: Callable[[], float]
) -> Iterator[ProductTime]:
    """Per shape, kind and width. bandwidth: measures that of a copy, in GB/s."""
    for name, (outputs, inputs, count) in product_shapes(config).items():
        timers: dict[tuple[str, int], Callable[[], float]] = {}
        sizes: dict[str, int] = {}
        for op in PRODUCTS:
            calls, sizes[op] = product_calls(bench, op, outputs, inputs)
            timers |= {(op, width): bench.timed([partial(call, width) for call in calls]) for width in widths}
        copies = [bandwidth()]
        times = _sampled(timers, samples)
        copies.append(bandwidth())
        for (op, width), (low, middle, high) in times.items():
            gigabytes = sizes[op] / middle / 1e9
            yield ProductTime(
                op=op,
                name=name,
                shape=(outputs, inputs),
                count=count,
                width=width,
                bytes=sizes[op],
                us_p20=1e6 * low,
                us_p50=1e6 * middle,
                us_p80=1e6 * high,
                gb_s=gigabytes,
                share_of_copy=gigabytes / percentiles(copies)[1],
            )


def _sampled(timers: dict[Key, Callable[[], float]], samples: int) -> dict[Key, tuple[float, float, float]]:
    """Percentiles of each timer's seconds, all timers in turn; the first round warms up."""
    spent: dict[Key, list[float]] = {key: [] for key in timers}
    for sample in range(samples + 1):
        for key, timer in timers.items():
            seconds = timer()
            if sample:
                spent[key].append(seconds)
    return {key: percentiles(seconds) for key, seconds in spent.items()}


def other_counts(config: ModelConfig) -> dict[str, dict[str, int]]:
    """Verifier → op of `other_op_times` → how often it is in a step."""
    layers = config.layers
    both = {
        "embed_rows": 1,
        "rope_append": layers,
        f"attend, {step_context(config)} tokens": layers,
        "top_table": 1,
    }
    wide = {"rmsnorm": 2 * layers + 1, "silu_mul": layers}
    int8 = {"rmsnorm_quantize, rotated": 2 * layers + 1, "quantize_rows": layers, "silu_mul_quantize, rotated": layers}
    return {"bf16": {**both, **wide}, "w8a8": {**both, **int8}}


def other_op_times(bench: Bench, config: ModelConfig, widths: Sequence[int], samples: int) -> Iterator[OpTime]:
    """Per op and width. The rows that these ops read lie in the cache, so no bandwidth is given."""
    counts = other_counts(config)
    for width in widths:
        timers = {name: bench.timed([call]) for name, call in other_calls(bench, config, width).items()}
        for name, seconds_of in _sampled(timers, samples).items():
            low, middle, high = (1e6 * seconds for seconds in seconds_of)
            count = {verifier: found.get(name, 0) for verifier, found in counts.items()}
            yield OpTime(op=name, count=count, width=width, us_p20=low, us_p50=middle, us_p80=high)


def other_calls(bench: Bench, config: ModelConfig, width: int) -> dict[str, Callable[[], object]]:
    """Op → a call of it with `width` rows, for every op of a step that is no product."""
    ops, size, inner = bench.ops, config.hidden, config.mlp
    stream, gate_up, gain = bench.normal(width, size), bench.normal(width, 2 * inner), bench.normal(size)
    mixed, logits = bench.normal(width, size).to(bench.activations), bench.normal(width, config.vocab)
    table = bench.normal(config.vocab, size, dtype=torch.bfloat16)
    ids = torch.arange(width, dtype=torch.int32, device=bench.device)
    turn, turn_inner = rotation(bench, size), rotation(bench, inner)
    return {
        "embed_rows": lambda: ops.embed_rows(table, ids),
        "rmsnorm": lambda: ops.rmsnorm(stream, gain, 1e-6),
        "rmsnorm_quantize, rotated": lambda: ops.rmsnorm_quantize(stream, gain, 1e-6, turn),
        "silu_mul": lambda: ops.silu_mul(gate_up),
        "silu_mul_quantize, rotated": lambda: ops.silu_mul_quantize(gate_up, turn_inner),
        "quantize_rows": lambda: ops.quantize_rows(mixed),
        "top_table": lambda: ops.top_table(logits, 5),
        **_attention_calls(bench, config, width),
    }


def _attention_calls(bench: Bench, config: ModelConfig, width: int) -> dict[str, Callable[[], object]]:
    """Rope at the context of a step, and attention over that context and over half of the model's."""
    ops, shape = bench.ops, (config.kv_heads, config.context, config.head_dim)
    k, v = (bench.normal(*shape).to(bench.activations) for _ in "kv")
    cos, sin = (bench.normal(config.context, config.head_dim // 2) for _ in "cs")
    qkv, gain = bench.normal(width, config.qkv_width), bench.normal(config.head_dim)
    queries = bench.normal(width, config.heads, config.head_dim).to(bench.activations)

    def places(context: int) -> torch.Tensor:
        return torch.arange(context, context + width, dtype=torch.int32, device=bench.device)

    positions = places(step_context(config))
    start = positions[:1].clone()
    return {
        **{
            f"attend, {context} tokens": partial(ops.attend, queries, k, v, places(context) + 1)
            for context in (step_context(config), config.context // 2)
        },
        "rope_append": lambda: ops.rope_append(qkv, k, v, start, cos, sin, gain, gain, 1e-6, positions=positions),
    }


def eager_passes(verifiers: Sequence[Decoder], widths: Sequence[int], context: int, samples: int) -> Iterator[PassTime]:
    """Passes launched op by op, to be compared with those from CUDA graphs."""
    for verifier in verifiers:
        yield from _passes(verifier, widths, context, samples, layers=range(verifier.config.layers))


def passes_without_overlap(
    verifiers: Sequence[Decoder], widths: Sequence[int], context: int, samples: int
) -> Iterator[PassTime]:
    """Passes from CUDA graphs without overlap, to be compared with those with it."""
    for verifier in verifiers:
        with without_overlap(verifier) as other:
            rows = _passes(other, widths, context, samples)
        yield from rows


@contextmanager
def without_overlap(verifier: Decoder) -> Iterator[Decoder]:
    """The same verifier, in whose passes a kernel begins when the one before has ended; to be used within the block.

    It is a decoder of its own, because a width's graph is captured at its first pass.
    """
    with cast(GraphBackend, verifier.ops).in_turn():
        yield replace(verifier)


def _passes(verifier: Decoder, widths: Sequence[int], context: int, samples: int, **options: Any) -> list[PassTime]:
    """Per width, a pass behind `context` tokens. options: of `Decoder.forward`."""
    rows = []
    cache = verifier.new_cache(context + max(widths))
    verifier.forward([1] * context, cache, logits="last")
    for width in widths:
        spent = []
        for sample in range(samples + 1):
            begun = perf_counter()
            verifier.forward([1] * width, cache, **options)
            wait_for_device(verifier.device)
            if sample:  # the first compiles and captures
                spent.append(1e3 * (perf_counter() - begun))
            verifier.rollback(cache, context)
        low, middle, high = percentiles(spent)
        rows.append(PassTime(verifier=verifier.name, width=width, ms_p20=low, ms_p50=middle, ms_p80=high))
    return rows
