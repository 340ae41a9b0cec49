"""How long is a verify pass, and how much of that is unavoidable?

A pass at batch 1 must read every weight once, so  floor = bytes read / stream bandwidth,  with the bandwidth of this
machine measured in the same run. *Fraction of floor* = floor / time: 1 is a perfect engine, and the honest way to
compare BF16 with W8A8 is both times beside both floors. Machines are noisy and drift: verifiers are interleaved sample
by sample (width by width, one pass each), and medians with the 20th and 80th percentile are reported, never a best.

Where a pass is not bound by memory, it is bound by arithmetic. That ceiling is measured too, never assumed: one product
of each verifier's own kernel, so wide that every weight, once read, is used CEILING_WIDTH times. Floor and ceiling
together are the roofline (Williams, Waterman, Patterson, CACM 52(4), 2009).

On a GPU a call returns before its work is done, so every clock waits for the device before it is read, and
the bandwidth is that of a copy, bytes read and bytes written.

What is lost: caches. The embedded model's INT8 weights are 134 MB, above any last-level cache here; a smaller model
would look faster than its floor.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from quasar_kernels import Backend

from quasar_lab.models.cuda_graphs import CudaRuntime
from quasar_lab.models.decoder import Decoder
from quasar_lab.support.errors import InputError
from quasar_lab.support.json_schema import parse
from quasar_lab.support.machine import gpu_name, percentiles, stamp, wait_for_device
from quasar_lab.support.progress import track

STREAM_BYTES = 256 * 2**20
COPY_BYTES = 2**31
"""Of each of the two buffers of a copy on a GPU, whose last-level cache holds tens of megabytes."""
CEILING_WIDTH = 128
"""Rows of the product that shows how fast a kernel computes: at 128 operations a byte and more, memory waits for it."""
CEILING_CALLS = 8


def copy_bandwidth(repeats: int = 9) -> float:
    """GB/s of a copy within the memory of the GPU, bytes read and written together: the median over copies of 2 GiB."""
    source = torch.randint(-128, 127, (COPY_BYTES,), dtype=torch.int8, device="cuda")
    copy, seconds = torch.empty_like(source), []
    for repeat in range(repeats + 1):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        begun.record()
        copy.copy_(source)
        ended.record()
        torch.cuda.synchronize()
        if repeat:  # the first warms up
            seconds.append(1e-3 * begun.elapsed_time(ended))
    return 2 * COPY_BYTES / percentiles(seconds)[1] / 1e9


def stream_bandwidth(ops: Backend, repeats: int = 9) -> float:
    """GB/s at which the threads of a backend read memory: the median over passes of 256 MB, far more than a cache
    holds. On a GPU, `copy_bandwidth`."""
    if ops.capabilities.asynchronous:
        return copy_bandwidth(repeats)
    data = torch.ones(STREAM_BYTES // 8, dtype=torch.int64)
    ops.stream_read(data)
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        ops.stream_read(data)
        seconds.append(time.perf_counter() - begun)
    return STREAM_BYTES / percentiles(seconds)[1] / 1e9


class StepTimer:
    """Verify passes behind `context` cached tokens, logits of every row, verifiers in turn: `sample()` times one pass
    of each width of each. The constructor warms up.

    device_ms: of those that ran on a GPU, the part without what the host prepares, by (verifier, width).
    """

    def __init__(self, verifiers: Sequence[Decoder], widths: Mapping[str, Sequence[int]], context: int):
        self._verifiers, self._widths, self._context = verifiers, widths, context
        self._generator = torch.Generator().manual_seed(0)
        prompt = self._ids(context)
        self.caches = []
        self.device_ms: dict[tuple[str, int], list[float]] = defaultdict(list)
        for verifier in verifiers:
            cache = verifier.new_cache(context + max(widths[verifier.name]))
            verifier.forward(prompt, cache, logits="last")
            self.caches.append(cache)
        self.sample()
        self.device_ms.clear()

    def _ids(self, count: int) -> list[int]:
        return torch.randint(self._verifiers[0].vocab, (count,), generator=self._generator).tolist()

    def sample(self) -> dict[str, dict[int, float]]:
        """Verifier → width → milliseconds of one pass."""
        times: dict[str, dict[int, float]] = {verifier.name: {} for verifier in self._verifiers}
        for width in sorted(set().union(*self._widths.values())):
            ids = self._ids(width)
            for verifier, cache in zip(self._verifiers, self.caches, strict=True):
                if width in self._widths[verifier.name]:
                    begun = time.perf_counter()
                    out = verifier.forward(ids, cache)
                    wait_for_device(verifier.device)
                    times[verifier.name][width] = 1e3 * (time.perf_counter() - begun)
                    if out.seconds is not None:
                        self.device_ms[verifier.name, width].append(1e3 * out.seconds())
                    verifier.rollback(cache, self._context)
        return times


def operations(verifier: Decoder, context: int, width: int) -> int:
    """Multiplications and additions of one pass behind `context` tokens: of the linears, the head and attention. What
    is left out (norms, rotations, rounding) is below a percent of it."""
    config = verifier.config
    seen = sum(context + row + 1 for row in range(width))
    return 2 * width * config.step_weights + 4 * config.layers * config.heads * config.head_dim * seen


def wide_product(verifier: Decoder, width: int = CEILING_WIDTH) -> tuple[int, Callable[[], object]]:
    """(operations, call) of a product of `width` rows with a linear of the verifier, by the kernel that its passes
    use."""
    linear, ops = verifier.layers[0].gate_up_proj, verifier.ops
    outputs, inputs = linear.shape
    x = torch.randn(width, inputs, generator=torch.Generator().manual_seed(0))
    x = x.to(verifier.device, ops.activations(torch.device(verifier.device)))
    prepared = linear.prepare(ops, x)
    return 2 * width * outputs * inputs, lambda: linear.multiply(ops, prepared)


class CeilingTimer:
    """Speed of arithmetic, verifiers in turn: `sample()` times one wide product of each, behind one that brings its
    weights back into the cache."""

    def __init__(self, verifiers: Sequence[Decoder]):
        self._products = {verifier.name: wide_product(verifier) for verifier in verifiers}
        self._samples: dict[str, list[float]] = {name: [] for name in self._products}
        self._runtime = CudaRuntime() if verifiers[0].device == "cuda" else None
        if self._runtime is not None:
            self._products = {name: self._captured(*product) for name, product in self._products.items()}

    def _captured(self, count: int, product: Callable[[], object]) -> tuple[int, Callable[[], object]]:
        """CEILING_CALLS of a product as one graph: a call of its own may take the host longer than the device."""
        assert self._runtime is not None
        return CEILING_CALLS * count, self._runtime.capture(lambda: [product() for _ in range(CEILING_CALLS)])

    def sample(self) -> None:
        for name, (count, product) in self._products.items():
            self._samples[name].append(count / self._seconds(product) / 1e9)

    def _seconds(self, product: Callable[[], object]) -> float:
        product()
        if self._runtime is not None:  # the device is busy with the first while the host launches the second
            first = self._runtime.mark()
            product()
            last = self._runtime.mark()
            wait_for_device("cuda")
            return self._runtime.seconds(first, last)
        begun = time.perf_counter()
        product()
        return time.perf_counter() - begun

    def rows(self) -> list[dict[str, Any]]:
        """Per verifier: billions of operations a second, as p20, p50, p80 over the samples."""
        return [
            {
                "verifier": name,
                "width": CEILING_WIDTH,
                **dict(zip(("gop_s_p20", "gop_s_p50", "gop_s_p80"), percentiles(samples), strict=True)),
                "samples": len(samples),
            }
            for name, samples in self._samples.items()
        ]


def step(verifiers: Sequence[Decoder], widths: Sequence[int], context: int = 256, samples: int = 20) -> dict[str, Any]:
    """Time of one verify pass (logits of every row) per verifier and width, behind `context` cached tokens; beside them
    the bandwidth of memory and, as "ceilings", the speed of arithmetic of the same minutes.

    Raises InputError on widths outside 1…64 or a context that leaves no room for them.
    """
    if not widths or min(widths) < 1 or max(widths) > 64:
        raise InputError(f"widths are {list(widths)}; accepted: one or more in 1…64")
    if samples < 1:
        raise InputError(f"samples is {samples}; accepted: 1 or more")
    room = min(verifier.context for verifier in verifiers) - max(widths)
    if not 1 <= context <= room:
        raise InputError(f"context is {context}; accepted: 1…{room}")
    timer = StepTimer(verifiers, {verifier.name: widths for verifier in verifiers}, context)
    ceilings = CeilingTimer(verifiers)
    bandwidth, found = [stream_bandwidth(verifiers[0].ops)], []
    for sample in track(range(1, samples + 1), samples, "Timing steps"):
        found.append(timer.sample())
        ceilings.sample()
        if sample % 10 == 9:
            bandwidth.append(stream_bandwidth(verifiers[0].ops, repeats=3))
    gigabytes = percentiles(bandwidth)[1]
    rows = []
    for verifier, cache in zip(verifiers, timer.caches, strict=True):
        for width in widths:
            low, middle, high = percentiles([times[verifier.name][width] for times in found])
            read = verifier.weight_bytes + (context + width) * cache.row_bytes
            floor = read / gigabytes / 1e6
            rows.append(
                {
                    "verifier": verifier.name,
                    "width": width,
                    "ms_p20": low,
                    "ms_p50": middle,
                    "ms_p80": high,
                    "samples": samples,
                    "bytes": read,
                    "operations": operations(verifier, context, width),
                    "floor_ms": floor,
                    "fraction_of_floor": floor / middle,
                }
            )
            on_device = timer.device_ms.get((verifier.name, width))
            if on_device:
                rows[-1]["device_ms_p50"] = percentiles(on_device)[1]
    first = verifiers[0]
    note = {"note": "reference backend: not a speed measurement"} if first.backend == "reference" else {}
    return {
        "bandwidth_gb_s": gigabytes,
        "device": first.device,
        **({"gpu": gpu_name()} if first.device == "cuda" else {}),
        "backend": first.backend,
        "threads": threads(first),
        "model": first.identity["model"],
        "context": context,
        "steps": rows,
        "ceilings": ceilings.rows(),
        **stamp().to_json(),
        **note,
    }


def threads(decoder: Decoder) -> int:
    """Threads that the decoder's backend computes with."""
    return decoder.ops.get_threads()


def read(path: Path | str) -> dict[str, Any]:
    """A result that `quasar-lab bench … --json` wrote, marked as saved, so that a figure of it says so.

    Raises InputError on a file that cannot be read or holds something else.
    """
    try:
        found = parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a result: {error}") from error
    kinds = ("steps", "runs", "kernels", "parts")
    if not isinstance(found, dict) or not any(isinstance(found.get(kind), list) for kind in kinds):
        raise InputError(f"{path} is no result of a measurement; accepted: what `quasar-lab bench … --json` writes")
    missing = [key for key in ("model", "device", "backend") if not isinstance(found.get(key), str)]
    if missing and "kernels" not in found:
        raise InputError(f"{path} lacks {', '.join(missing)}; accepted: what `quasar-lab bench … --json` writes")
    return {**found, "saved": True}
