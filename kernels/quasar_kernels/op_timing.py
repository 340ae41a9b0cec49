"""The time of an op on a GPU, without the time that the host needs to launch it.

## Idea

An op of a decoding step takes a few microseconds, which is less than a launch from Python costs. So a call is captured
into a CUDA graph, as an engine captures it, and the graph is timed between two events of the device.

## Choice

One call is shorter than an event is precise, so a graph holds at least CALLS of them. A weight that lies in the L2
cache would be read faster than from memory: `product_calls` makes copies of it that take turns, until all copies
together are four times as large as that cache.

## What is lost

On a CPU the same calls run and are timed by the host's clock. That is enough to test a benchmark, and no measurement.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from quasar_kernels.cuda_runtime import Runtime
from quasar_kernels.reference import ROWS

CALLS = 16
"""Calls of an op in one graph, at least."""


class Bench:
    """Where ops are timed.

    ops: the backend. device: "cuda", or "cpu" for a rehearsal without measurements. runtime: captures graphs there.
    activations: the dtype of what feeds a product.
    """

    def __init__(self, ops: Any, device: str, runtime: Runtime, seed: int):
        self.ops, self.device, self.runtime = ops, device, runtime
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.activations = ops.activations(torch.device(device))

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Random numbers on the device, normal with this standard deviation."""
        return torch.randn(*shape, generator=self.generator, device=self.device, dtype=dtype).mul_(scale)

    def timed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
        """Captures the calls, repeated to at least CALLS. Each call of the result is one sample: seconds per call."""
        rounds = -(-CALLS // len(calls))

        def work() -> None:
            for _ in range(rounds):
                for call in calls:
                    call()

        return partial(self._sample, self.runtime.capture(work), rounds * len(calls), calls)

    def _sample(self, replay: Callable[[], None], calls: int, kept: Sequence[Callable[[], object]]) -> float:
        """kept: the calls themselves. A graph knows their operands by address only, so they must live as long."""
        if self.device != "cuda":
            begun = perf_counter()
            replay()
            return (perf_counter() - begun) / calls
        # An idle device passes a mark at once, so the time that the host needs to launch the graph would be measured
        # too. Therefore a first replay keeps the device busy while the host launches the one between the marks.
        replay()
        begun = self.runtime.mark()
        replay()
        ended = self.runtime.mark()
        torch.cuda.synchronize()
        return self.runtime.seconds(begun, ended) / calls

    def cache_bytes(self) -> int:
        """The size of the last-level cache."""
        return torch.cuda.get_device_properties(0).L2_cache_size if self.device == "cuda" else 4096


def product_calls(
    bench: Bench, kind: str, outputs: int, inputs: int, rows: int = ROWS
) -> tuple[list[Callable[[int], Tensor]], int]:
    """Products with a weight [outputs, inputs]: (one call per copy of the weight, bytes of one copy).

    kind: "linear_bf16" or "linear_w8a8". A call takes the number of rows, 1…`rows`; all calls write the same buffer.
    """
    ops, device = bench.ops, bench.device
    x, out = bench.normal(rows, inputs), torch.empty(rows, outputs, device=device)
    size = outputs * inputs * (2 if kind == "linear_bf16" else 1)
    copies = max(2, -(-4 * bench.cache_bytes() // size))
    if kind == "linear_bf16":
        x = x.to(bench.activations)
        weights = [bench.normal(outputs, inputs, scale=inputs**-0.5, dtype=torch.bfloat16) for _ in range(copies)]

        def bf16(weight: Any, m: int) -> Tensor:
            return ops.linear_bf16(x[:m], weight, out=out[:m])

        return [partial(bf16, ops.pack_bf16(weight)) for weight in weights], size
    integers = partial(torch.randint, -127, 128, generator=bench.generator, dtype=torch.int8, device=device)
    q, scale, wscale = integers((rows, inputs)), bench.normal(rows).abs(), bench.normal(outputs).abs()

    def w8a8(weight: Any, m: int) -> Tensor:
        return ops.linear_w8a8(q[:m], scale[:m], weight, wscale, out=out[:m])

    return [partial(w8a8, ops.pack_w8a8(integers((outputs, inputs)))) for _ in range(copies)], size
