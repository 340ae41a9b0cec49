"""How close to the speed of memory is each linear?

## Idea

At batch 1 a linear is the reading of its weights. So the measure is  bytes of packed weight / time,  as a fraction of
the bandwidth that `stream_read` reaches on this machine in the same minute with the same threads. 1 is a perfect
kernel. A little above 1 happens, since memory is shared with other tenants and changes by the second.

## Choice

Copies of each weight take turns until together they exceed twice the last-level cache, so nothing is read from it.
Samples of all kinds, widths and the stream are interleaved. Medians with the 20th and the 80th percentile are reported,
never a best.

A rotation reads no weights: it is work on a row that lies in the cache. The question there is how much it adds, so the
rounding of the gated row is timed with and without it, sample by sample.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from quasar_kernels import Transform, cpu, rotation_sides
from torch import Tensor

from quasar_lab.models.model_config import ModelConfig
from quasar_lab.support.errors import BackendError
from quasar_lab.support.machine import Stamp, last_level_cache, percentiles, stamp
from quasar_lab.support.result import Result, flat, left_out

LARGE = ((4096, 4096), (12288, 4096))
"""(outputs, inputs) of two linears of an 8 B model."""
WIDTHS = (1, 2, 4, 6, 8)
KINDS = ("linear_w8a8", "linear_bf16")
LEAST_STREAM = 128 << 20
"""Bytes that the bandwidth is measured over, or more where the cache is large."""
ROW_CALLS = 100
"""Calls of a row op that one sample times: a single one is shorter than the clock is sharp."""


@dataclass(frozen=True)
class KernelRow(Result):
    """The time of one call of an op, by shape and width."""

    op: str
    backend: str
    shape: list[int]
    """Of a linear (outputs, inputs); of a row op (channels), and rotated (channels, side of the dense factor)."""
    width: int
    us_p20: float
    us_p50: float
    """Median microseconds of a call."""
    us_p80: float
    gb_s: float | None
    """Bytes of weight read per second, in GB; None for an op that reads none."""
    fraction_of_stream: float | None
    """The same as a share of the stream bandwidth: 1 is a perfect kernel."""


@dataclass(frozen=True, kw_only=True)
class KernelResult(Result):
    """Speed of the linears of a model, and the cost of a rotation."""

    bandwidth_gb_s: float
    """Stream bandwidth, measured between the calls."""
    device: str
    backend: str
    instruction_set: str
    """What the C++ backend runs on this processor."""
    threads: int
    samples: int
    """Samples that each row is the median of."""
    kernels: list[KernelRow]
    stamp: Stamp = flat()
    command: str | None = left_out()
    """The command line that measured it."""
    saved: bool | None = left_out()
    """True where the result was read from a file."""


def shapes_of(config: ModelConfig) -> list[tuple[int, int]]:
    """(outputs, inputs) of the linears of a model, the head last."""
    return [*config.projection_shapes().values(), (config.vocab, config.hidden)]


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _weights(kind: str, outputs: int, inputs: int, least: int) -> list[cpu.Packed]:
    """Packed copies of one weight, together at least `least` bytes and at least two."""
    wq = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    first = cpu.pack_w8a8(wq) if kind == "linear_w8a8" else cpu.pack_bf16(wq.bfloat16())
    copies = max(2, -(-least // first.nbytes))
    return [first] + [cpu.Packed(first.data.clone(), first.shape, first.dtype) for _ in range(copies - 1)]


def _all_copies(kind: str, weights: list[cpu.Packed], width: int) -> Callable[[], None]:
    """One call of the op for every copy of the weight."""
    outputs, inputs = weights[0].shape
    if kind == "linear_bf16":
        call: Callable[[cpu.Packed], Tensor] = partial(cpu.linear_bf16, torch.randn(width, inputs))
    else:
        q = torch.randint(-127, 128, (width, inputs), dtype=torch.int8)
        scale = torch.ones(width)
        wscale = torch.ones(outputs)
        call = partial(_call_w8a8, q, scale, wscale)

    def run() -> None:
        for weight in weights:
            call(weight)

    return run


def _call_w8a8(q: Tensor, scale: Tensor, wscale: Tensor, weight: cpu.Packed) -> Tensor:
    return cpu.linear_w8a8(q, scale, weight, wscale)


def _gated_rows(channels: int, width: int) -> dict[str, tuple[list[int], Callable[[], None]]]:
    """Op → (shape, some calls of it): `silu_mul_quantize` plain and, where the kernels take a rotation of so many
    channels, rotated."""
    gate_up = torch.randn(width, 2 * channels)

    def calls(transform: Transform | None) -> None:
        for _ in range(ROW_CALLS):
            cpu.silu_mul_quantize(gate_up, transform)

    work: dict[str, tuple[list[int], Callable[[], None]]] = {"silu_mul_quantize": ([channels], partial(calls, None))}
    sides = [side for side in rotation_sides(channels) if side <= cpu.MOST_ROTATION]
    if sides:
        side = next((side for side in sides if side >= 8), sides[-1])
        transform = Transform(rotation=torch.linalg.qr(torch.randn(side, side))[0].contiguous())
        work["silu_mul_quantize, rotated"] = ([channels, side], partial(calls, transform))
    return work


def time_row_ops(channels: int, widths: Sequence[int] = WIDTHS, samples: int = 15) -> list[KernelRow]:
    """What a rotation adds to `silu_mul_quantize` of so many channels: the time of the op without it and, where the
    kernels take one, with it."""
    rows = []
    for width in widths:
        work = _gated_rows(channels, width)
        times: dict[str, list[float]] = {op: [] for op in work}
        for sample in range(samples + 1):
            for op, (_, run) in work.items():
                seconds = _seconds(run) / ROW_CALLS
                if sample:  # the first round warms up
                    times[op].append(seconds)
        rows += [_row(op, work[op][0], width, spans) for op, spans in times.items()]
    return rows


def _row(
    op: str, shape: list[int], width: int, seconds: Sequence[float], gb_s: float | None = None, bandwidth: float = 1.0
) -> KernelRow:
    """seconds: of a call, per sample. bandwidth: GB/s of the stream."""
    fast, middle, slow = (1e6 * span for span in percentiles(seconds))
    fraction = None if gb_s is None else gb_s / bandwidth
    return KernelRow(op, cpu.name, shape, width, fast, middle, slow, gb_s, fraction)


def time_linears(
    shapes: Iterable[tuple[int, int]], widths: Sequence[int] = WIDTHS, samples: int = 15, channels: int | None = None
) -> KernelResult:
    """Per op, shape and width: microseconds a call, GB/s and fraction of stream, as p20, p50 and p80 over samples;
    with `channels` the rows of `time_row_ops` too.

    Raises BackendError where the C++ backend is not there to be measured.
    """
    reason = cpu.unavailable()
    if reason is not None:
        raise BackendError(f"there is nothing to measure: {reason}")
    least = 2 * last_level_cache()
    buffer = torch.ones(max(least, LEAST_STREAM), dtype=torch.uint8)
    rows: list[KernelRow] = []
    bandwidths = []
    for outputs, inputs in shapes:
        weights = {kind: _weights(kind, outputs, inputs, least) for kind in KINDS}
        found, bandwidth = _time_shape(weights, widths, samples, buffer)
        rows += found
        bandwidths.append(bandwidth)
    if channels is not None:
        rows += time_row_ops(channels, widths, samples)
    return KernelResult(
        bandwidth_gb_s=percentiles(bandwidths)[1],
        device="cpu",
        backend=cpu.name,
        instruction_set=cpu.isa(),
        threads=cpu.get_threads(),
        samples=samples,
        kernels=rows,
        stamp=stamp(),
    )


def _time_shape(
    weights: dict[str, list[cpu.Packed]], widths: Sequence[int], samples: int, buffer: Tensor
) -> tuple[list[KernelRow], float]:
    """The rows of one shape, and GB/s of the stream between its samples. weights: kind → copies."""
    passes = {(kind, width): _all_copies(kind, weights[kind], width) for width in widths for kind in KINDS}
    times: dict[tuple[str, int], list[float]] = {key: [] for key in passes}
    streams = []
    for sample in range(samples + 1):
        stream = buffer.numel() / _seconds(partial(cpu.stream_read, buffer)) / 1e9
        spent = {key: _seconds(run) for key, run in passes.items()}
        if sample:  # the first round warms up
            streams.append(stream)
            for key, seconds in spent.items():
                times[key].append(seconds)
    bandwidth = percentiles(streams)[1]
    rows = []
    for (kind, width), spans in times.items():
        copies = len(weights[kind])
        gb_s = copies * weights[kind][0].nbytes / percentiles(spans)[1] / 1e9
        shape = list(weights[kind][0].shape)
        rows.append(_row(kind, shape, width, [span / copies for span in spans], gb_s, bandwidth))
    return rows, bandwidth
