"""How fast, on a GPU: products against the bandwidth of a copy, the other ops, and a step without graphs or without
overlap.

The time of an op is that of a CUDA graph of it between two events: launches cost nothing there, as in the engine.
Copies of a weight take turns until together they exceed four times the L2 cache, so each is read from memory; BF16,
W8A8 and the copy alternate sample by sample. How often a step has each op is beside it (`count`), so that what the ops
of a step take one by one can be held against the step.

The model is random, in the shapes of Qwen3-8B: speed depends on shapes, not on values. Its W8A8 is a true rounding of
its BF16 weights with the rotations that the recipe `w8a8` gives these shapes, so its step does all the work there is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from quasar_kernels import Transform
from quasar_kernels.reference import ROWS, rotate
from torch import Tensor

from quasar_lab.models.cuda_graphs import Runtime
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.linear import Bf16Linear, Int8Linear, Layer
from quasar_lab.models.model_config import ModelConfig
from quasar_lab.quantization.gptq import quantize_weight
from quasar_lab.quantization.rotation import rotation_matrix
from quasar_lab.support.machine import percentiles, wait_for_device

QWEN3_8B = ModelConfig(
    family="qwen3", hidden=4096, layers=36, heads=32, kv_heads=8, head_dim=128, mlp=12288, vocab=151936, context=8192,
    eps=1e-6, rope_theta=1e6, rope_scaling=None, window=0, tied=False, qk_norm=True, eos_ids=(),
)  # fmt: skip
TINY = replace(QWEN3_8B, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=96, vocab=211, context=512)
CALLS = 16
"""Calls of an op in one graph, at least: one alone is shorter than an event is sharp."""
SLICE = 2**25
"""Weights that are rotated at a time, in FP32."""


class Bench:
    """Where to measure: ops, device, and how to capture. Without CUDA it goes through the motions."""

    def __init__(self, ops: Any, device: str, runtime: Runtime, seed: int):
        self.ops, self.device, self.runtime = ops, device, runtime
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.activations = ops.activations(torch.device(device))

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device, dtype=dtype).mul_(scale)

    def timed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
        """Captures the calls, repeated to at least CALLS; each sample is then seconds per call."""
        rounds = -(-CALLS // len(calls))

        def work() -> None:
            for _ in range(rounds):
                for call in calls:
                    call()

        return partial(self._sample, self.runtime.capture(work), rounds * len(calls), calls)

    def _sample(self, replay: Callable[[], None], calls: int, kept: Sequence[Callable[[], object]]) -> float:
        """kept: the calls, whose operands a graph knows by address only."""
        if self.device != "cuda":
            begun = perf_counter()
            replay()
            return (perf_counter() - begun) / calls
        # A mark on an idle device is passed at once, and what the host needs to launch the graph would be measured too:
        # so the device is still busy with a replay when the one between the marks is launched.
        replay()
        begun = self.runtime.mark()
        replay()
        ended = self.runtime.mark()
        wait_for_device(self.device)
        return self.runtime.seconds(begun, ended) / calls

    def cache_bytes(self) -> int:
        """Of the last-level cache."""
        return torch.cuda.get_device_properties(0).L2_cache_size if self.device == "cuda" else 4096


def step_context(config: ModelConfig) -> int:
    """Tokens behind which a step is timed."""
    return config.context // 32


def product_shapes(config: ModelConfig) -> dict[str, tuple[int, int, int]]:
    """Name → outputs, inputs, how many there are in a step."""
    shapes = {name: (*shape, config.layers) for name, shape in config.projection_shapes().items()}
    return {**shapes, "lm_head": (config.vocab, config.hidden, 1)}


def products(
    bench: Bench, config: ModelConfig, widths: Sequence[int], samples: int, bandwidth: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """Per shape, kind and width: µs as percentiles, bytes of weight, GB/s, and the share of `bandwidth` (GB/s) that was
    measured between the samples."""
    for name, (outputs, inputs, count) in product_shapes(config).items():
        work = {}
        for kind in ("linear_bf16", "linear_w8a8"):
            calls, size = product_calls(bench, kind, outputs, inputs)
            work |= {(kind, width): (size, bench.timed([partial(call, width) for call in calls])) for width in widths}
        times: dict[tuple[str, int], list[float]] = {key: [] for key in work}
        streams = [bandwidth()]
        for sample in range(samples + 1):
            for key, (_, timer) in work.items():
                seconds = timer()
                if sample:  # the first round warms up
                    times[key].append(seconds)
        streams.append(bandwidth())
        stream = percentiles(streams)[1]
        for (kind, width), spent in times.items():
            low, middle, high = percentiles(spent)
            size = work[kind, width][0]
            row = {"op": kind, "name": name, "shape": [outputs, inputs], "count": count, "width": width, "bytes": size}
            speed = {"gb_s": size / middle / 1e9, "share_of_copy": size / middle / 1e9 / stream}
            yield {**row, "us_p20": 1e6 * low, "us_p50": 1e6 * middle, "us_p80": 1e6 * high, **speed}


def product_calls(
    bench: Bench, kind: str, outputs: int, inputs: int, rows: int = ROWS
) -> tuple[list[Callable[[int], Tensor]], int]:
    """(a call of 1…`rows` rows per copy of the weight, bytes of one copy); all calls write the same buffer."""
    ops, device = bench.ops, bench.device
    x, out = bench.normal(rows, inputs), torch.empty(rows, outputs, device=device)
    size = outputs * inputs * (2 if kind == "linear_bf16" else 1)
    copies = max(2, -(-4 * bench.cache_bytes() // size))
    if kind == "linear_bf16":
        x = x.to(bench.activations)
        weights = [bench.normal(outputs, inputs, scale=inputs**-0.5, dtype=torch.bfloat16) for _ in range(copies)]
        packed = [ops.pack_bf16(weight) for weight in weights]
        return [lambda m, w=w: ops.linear_bf16(x[:m], w, out=out[:m]) for w in packed], size
    integers = partial(torch.randint, -127, 128, generator=bench.generator, dtype=torch.int8, device=device)
    q, scale, wscale = integers((rows, inputs)), bench.normal(rows).abs(), bench.normal(outputs).abs()
    packed = [ops.pack_w8a8(integers((outputs, inputs))) for _ in range(copies)]
    return [lambda m, w=w: ops.linear_w8a8(q[:m], scale[:m], w, wscale, out=out[:m]) for w in packed], size


def other_counts(config: ModelConfig) -> dict[str, dict[str, int]]:
    """Verifier → op of `other_ops` → how often it is in a step."""
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


def other_ops(bench: Bench, config: ModelConfig, widths: Sequence[int], samples: int) -> Iterator[dict[str, Any]]:
    """Per op and width: µs as percentiles, and its count in a step of each verifier. Their rows lie in the cache, so
    there is no bandwidth to speak of."""
    counts = other_counts(config)
    for width in widths:
        timers = {name: bench.timed([call]) for name, call in _others(bench, config, width).items()}
        spent: dict[str, list[float]] = {name: [] for name in timers}
        for sample in range(samples + 1):
            for name, timer in timers.items():
                seconds = timer()
                if sample:
                    spent[name].append(seconds)
        for name, seconds_of in spent.items():
            low, middle, high = (1e6 * seconds for seconds in percentiles(seconds_of))
            count = {verifier: found.get(name, 0) for verifier, found in counts.items()}
            yield {"op": name, "count": count, "width": width, "us_p20": low, "us_p50": middle, "us_p80": high}


def _others(bench: Bench, config: ModelConfig, width: int) -> dict[str, Callable[[], object]]:
    ops, device, size, inner = bench.ops, bench.device, config.hidden, config.mlp
    stream, gate_up, gain = bench.normal(width, size), bench.normal(width, 2 * inner), bench.normal(size)
    mixed, qkv = bench.normal(width, size).to(bench.activations), bench.normal(width, config.qkv_width)
    turn, turn_inner = _rotation(bench, size), _rotation(bench, inner)
    shape = config.kv_heads, config.context, config.head_dim
    k, v = (bench.normal(*shape).to(bench.activations) for _ in "kv")
    cos, sin = (bench.normal(config.context, config.head_dim // 2) for _ in "cs")
    queries = bench.normal(width, config.heads, config.head_dim).to(bench.activations)
    logits, gain_head = bench.normal(width, config.vocab), bench.normal(config.head_dim)
    table = bench.normal(config.vocab, size, dtype=torch.bfloat16)
    ids = torch.arange(width, dtype=torch.int32, device=device)
    calls: dict[str, Callable[[], object]] = {
        "embed_rows": lambda: ops.embed_rows(table, ids),
        "rmsnorm": lambda: ops.rmsnorm(stream, gain, 1e-6),
        "rmsnorm_quantize, rotated": lambda: ops.rmsnorm_quantize(stream, gain, 1e-6, turn),
        "silu_mul": lambda: ops.silu_mul(gate_up),
        "silu_mul_quantize, rotated": lambda: ops.silu_mul_quantize(gate_up, turn_inner),
        "quantize_rows": lambda: ops.quantize_rows(mixed),
        "top_table": lambda: ops.top_table(logits, 5),
    }
    for context in (step_context(config), config.context // 2):
        numbers = torch.arange(context, context + width, dtype=torch.int32, device=device)
        calls[f"attend, {context} tokens"] = partial(ops.attend, queries, k, v, numbers + 1)
    start = numbers[:1].clone()
    calls["rope_append"] = lambda: ops.rope_append(
        qkv, k, v, start, cos, sin, gain_head, gain_head, 1e-6, positions=numbers
    )
    return calls


def _rotation(bench: Bench, size: int) -> Transform:
    rotation = rotation_matrix(size)
    return Transform(rotation=None if rotation is None else rotation.to(bench.device))


def models(bench: Bench, config: ModelConfig) -> tuple[Decoder, Decoder]:
    """(BF16, W8A8): random weights, and their rounding."""
    ops, device = bench.ops, bench.device

    def linear(outputs: int, inputs: int) -> Bf16Linear:
        weight = bench.normal(outputs, inputs, scale=inputs**-0.5, dtype=torch.bfloat16)
        return Bf16Linear(ops.pack_bf16(weight), None, (outputs, inputs))

    def gain(size: int) -> Tensor:
        return 1 + bench.normal(size, scale=0.1)

    def rounded(linear: Bf16Linear, turned: bool = True) -> Int8Linear:
        _, inputs = linear.shape
        transform = _rotation(bench, inputs) if turned else None
        parts = []
        for rows in linear.weight.split(max(1, SLICE // inputs)):
            wide = rows.float()
            parts.append(quantize_weight(wide if transform is None else rotate(wide, transform.rotation)))
        wq, wscale = (torch.cat(column) for column in zip(*parts, strict=True))
        return Int8Linear(ops.pack_w8a8(wq), wscale, None, transform, linear.shape)

    def layer() -> Layer:
        linears: dict[str, Any] = {name: linear(*shape) for name, shape in config.projection_shapes().items()}
        norms: dict[str, Any] = {"attention_norm": gain(config.hidden), "mlp_norm": gain(config.hidden)}
        return Layer(**norms, q_norm=gain(config.head_dim), k_norm=gain(config.head_dim), **linears)

    name = "random weights in the shapes of Qwen3-8B"
    checkpoint: Any = SimpleNamespace(name=name, checksum="random", tokenizer=None, config=config)
    bf16 = Decoder(
        name="bf16",
        config=config,
        checkpoint=checkpoint,
        ops=ops,
        embedding=bench.normal(config.vocab, config.hidden, dtype=torch.bfloat16),
        layers=[layer() for _ in range(config.layers)],
        norm=gain(config.hidden),
        head=linear(config.vocab, config.hidden),
        device=device,
    )
    projections = config.projection_shapes()
    layers = [
        replace(one, **{part: rounded(getattr(one, part), part != "o_proj") for part in projections})
        for one in bf16.layers
    ]
    return bf16, replace(bf16, name="w8a8", layers=layers, head=rounded(bf16.head))


def eager(verifiers: Sequence[Decoder], widths: Sequence[int], context: int, samples: int) -> Iterator[dict[str, Any]]:
    """The same pass launched op by op: ms as percentiles, to be held against the graph's."""
    for verifier in verifiers:
        yield from _passes(verifier, widths, context, samples, layers=range(verifier.config.layers))


def in_turn(
    verifiers: Sequence[Decoder], widths: Sequence[int], context: int, samples: int
) -> Iterator[dict[str, Any]]:
    """The same pass from graphs without overlap: ms as percentiles, to be held against those with it."""
    for verifier in verifiers:
        with without_overlap(verifier) as other:
            rows = _passes(other, widths, context, samples)
        yield from rows


@contextmanager
def without_overlap(verifier: Decoder) -> Iterator[Decoder]:
    """The same verifier, in whose passes a kernel begins when its predecessor has ended; for use within. It is a
    decoder of its own, since a width's graph is captured at its first pass."""
    with getattr(verifier.ops, "in_turn", nullcontext)():
        yield replace(verifier)


def _passes(
    verifier: Decoder, widths: Sequence[int], context: int, samples: int, **options: Any
) -> list[dict[str, Any]]:
    """Per width: ms of a pass behind `context` tokens, as percentiles."""
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
        rows.append({"verifier": verifier.name, "width": width, "ms_p20": low, "ms_p50": middle, "ms_p80": high})
    return rows
