"""How close to the speed of memory is each linear?

At batch 1 a linear is the reading of its weights, so the measure is  bytes of packed weight / time,  as a fraction of
the bandwidth that `stream_read` reaches on this machine in the same minute with the same threads. 1 is a perfect
kernel; a little above 1 happens, since memory is shared with other tenants and changes by the second.

How it is kept honest. Copies of each weight are rotated until together they exceed twice the last-level cache, so
nothing is read from it. Samples of all kinds, widths and the stream are interleaved, and medians with the 20th and 80th
percentile are reported, never a best.

A rotation is no reading of weights but work on a row that lies in the cache; the question there is how much it adds, so
the rounding of the gated row is timed with and without it, sample by sample.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from quasar_kernels import Transform, cpu, rotation_sides
from torch import Tensor

from quasar_lab.models.model_config import ModelConfig
from quasar_lab.support.errors import BackendError
from quasar_lab.support.machine import last_level_cache, percentiles, stamp

LARGE = ((4096, 4096), (12288, 4096))
"""(outputs, inputs) of two linears of an 8 B model."""
WIDTHS = (1, 2, 4, 6, 8)
KINDS = ("linear_w8a8", "linear_bf16")
ROW_CALLS = 100
"""Calls of a row op that one sample times: a single one is shorter than the clock is sharp."""


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


def _pass(kind: str, weights: list[cpu.Packed], width: int) -> Callable[[], None]:
    """One call of the op for every copy of the weight."""
    outputs, inputs = weights[0].shape
    if kind == "linear_bf16":
        call: Callable[[cpu.Packed], Tensor] = partial(cpu.linear_bf16, torch.randn(width, inputs))
    else:
        q, scale, wscale = (
            torch.randint(-127, 128, (width, inputs), dtype=torch.int8),
            torch.ones(width),
            torch.ones(outputs),
        )
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


def measure_rows(channels: int, widths: Sequence[int] = WIDTHS, samples: int = 15) -> list[dict[str, Any]]:
    """What a rotation adds to `silu_mul_quantize` of so many channels; the rows of `measure` without a bandwidth. The
    shape of the rotated op is (channels, side of the dense factor)."""
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


def _row(op: str, shape: list[int], width: int, seconds: list[float]) -> dict[str, Any]:
    fast, middle, slow = (1e6 * span for span in percentiles(seconds))
    row = {"op": op, "backend": "cpu", "shape": shape, "width": width, "us_p20": fast, "us_p50": middle, "us_p80": slow}
    return {**row, "gb_s": None, "fraction_of_stream": None}


def measure(
    shapes: Iterable[tuple[int, int]], widths: Sequence[int] = WIDTHS, samples: int = 15, channels: int | None = None
) -> dict[str, Any]:
    """Per op, shape and width: microseconds a call, GB/s and fraction of stream, as p20, p50 and p80 over samples;
    with `channels` the rows of `measure_rows` too.

    Raises BackendError where the C++ backend is not there to be measured.
    """
    reason = cpu.unavailable()
    if reason is not None:
        raise BackendError(f"there is nothing to measure: {reason}")
    least = 2 * last_level_cache()
    buffer = torch.ones(max(least, 128 << 20), dtype=torch.uint8)
    rows, streams = [], []
    for outputs, inputs in shapes:
        weights = {kind: _weights(kind, outputs, inputs, least) for kind in KINDS}
        passes = {(kind, width): _pass(kind, weights[kind], width) for width in widths for kind in KINDS}
        times: dict[tuple[str, int], list[float]] = {key: [] for key in passes}
        here = []
        for sample in range(samples + 1):
            stream = buffer.numel() / _seconds(partial(cpu.stream_read, buffer))
            spent = {key: _seconds(run) for key, run in passes.items()}
            if sample:  # the first round warms up
                here.append(stream)
                for key, seconds in spent.items():
                    times[key].append(seconds)
        bandwidth = percentiles(here)[1]
        streams.append(bandwidth)
        for (kind, width), spans in times.items():
            copies, rate = len(weights[kind]), weights[kind][0].nbytes / percentiles(spans)[1] * len(weights[kind])
            row = _row(kind, [outputs, inputs], width, [span / copies for span in spans])
            rows.append({**row, "gb_s": rate / 1e9, "fraction_of_stream": rate / bandwidth})
    if channels is not None:
        rows += measure_rows(channels, widths, samples)
    return {
        "bandwidth_gb_s": percentiles(streams)[1] / 1e9,
        "device": "cpu",
        "backend": cpu.name,
        "instruction_set": cpu.isa(),
        "threads": cpu.get_threads(),
        "samples": samples,
        "kernels": rows,
        **stamp().to_json(),
    }
