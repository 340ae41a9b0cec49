"""Clocks around verify passes, and around the products that show how fast a kernel computes.

## Idea

Machines are noisy and drift. So verifiers are interleaved: a sample is one pass of each width of each verifier, in
turn. Whoever times passes takes many samples and reports medians.

## Choice

On a GPU a call returns before its work is done, so every clock waits for the device before it is read.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from quasar_kernels.cuda_runtime import CudaRuntime

from quasar_lab.models.decoder import Decoder
from quasar_lab.support.machine import percentiles, wait_for_device
from quasar_lab.support.result import Result

CEILING_WIDTH = 128
"""Rows of the product that shows how fast a kernel computes: at 128 operations a byte and more, memory waits for it."""
CEILING_CALLS = 8
"""Products in the one graph that is timed on a GPU."""


class StepTimer:
    """Times verify passes behind `context` cached tokens, with the logits of every row. The constructor warms up."""

    def __init__(self, verifiers: Sequence[Decoder], widths: Mapping[str, Sequence[int]], context: int):
        self._verifiers = verifiers
        self._widths = widths
        self._context = context
        self._generator = torch.Generator().manual_seed(0)
        prompt = self._ids(context)
        # The cache of each verifier, in their order.
        self.caches = []
        # (verifier, width) → per sample, the milliseconds that the GPU worked on the pass. On a CPU it stays empty.
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
        """Times one pass of each width of each verifier, in turn: verifier → width → milliseconds."""
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
    """Multiplications and additions of one pass behind `context` tokens: of the linears, the head and attention.

    What is left out (norms, rotations, rounding) is below a percent of it.
    """
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


@dataclass(frozen=True)
class Ceiling(Result):
    """How fast the kernel of a verifier computes: billions of operations a second, percentiles over the samples."""

    verifier: str
    width: int
    """Rows of the product."""
    gop_s_p20: float
    gop_s_p50: float
    gop_s_p80: float
    samples: int


class CeilingTimer:
    """Times how fast the kernels of the verifiers compute."""

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
        """Times one wide product of each verifier, behind one that brings its weights back into the cache."""
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

    def ceilings(self) -> list[Ceiling]:
        """What the samples so far say, a row per verifier."""
        return [_ceiling(name, samples) for name, samples in self._samples.items()]


def _ceiling(verifier: str, samples: Sequence[float]) -> Ceiling:
    low, middle, high = percentiles(samples)
    return Ceiling(verifier, CEILING_WIDTH, low, middle, high, len(samples))
