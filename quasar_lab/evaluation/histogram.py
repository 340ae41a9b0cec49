"""Histograms on a logarithmic scale, for values that spread over many powers of ten.

## Idea

KL divergences and margins spread over many powers of ten, and their tails are what matters. So values are counted in
bins that are equally wide on a logarithmic scale. The memory does not grow with the number of values.

## What is lost

The exact values. A bin is a 256th of a factor of ten wide, so a percentile is read to within 1 %.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from quasar_lab.support.result import Result

FINE = 256
"""Bins to a factor of ten that values are counted in. A `Histogram` reports fewer."""


@dataclass(frozen=True)
class Histogram(Result):
    """How many values fell into each bin."""

    edges: list[float]
    """The n + 1 edges of the n bins, rising."""
    counts: list[int]
    """Values from one edge up to the next."""
    below: int
    """Values below the first edge, zero among them."""
    above: int
    """Values from the last edge on."""

    def counts_with_ends(self) -> list[int]:
        """The counts, where the first bin also holds what is below it, and the last what is above."""
        counts = [*self.counts]
        counts[0] += self.below
        counts[-1] += self.above
        return counts


class LogBins:
    """Counts values between 10^low and 10^high in bins of equal width on a logarithmic scale."""

    def __init__(self, low: int, high: int, reported: int):
        """low, high: powers of ten where the first bin begins and the last one ends. reported: bins to a factor of ten
        that `histogram` gives; a divisor of 256."""
        self._low = low
        self._high = high
        self._reported = reported
        self._counts = torch.zeros((high - low) * FINE + 2, dtype=torch.int64)  # first and last: beyond the ends

    def add(self, values: Tensor) -> None:
        """Counts values f32 [n], all at least 0."""
        places = ((values.double().log10() - self._low) * FINE).floor().clamp(-1, len(self._counts) - 2).long() + 1
        self._counts += torch.bincount(places, minlength=len(self._counts))

    def quantile(self, share: float) -> float | None:
        """The value of rank share·n, as the middle of its bin. 0 below the lowest bin, None without values."""
        total = int(self._counts.sum())
        if not total:
            return None
        rank = min(int(share * total), total - 1)
        place = int((self._counts.cumsum(0) > rank).nonzero()[0])
        return 10 ** min(self._low + (place - 0.5) / FINE, self._high) if place else 0.0

    def histogram(self) -> Histogram:
        """The counts so far, in the wider bins that are reported."""
        steps = (self._high - self._low) * self._reported
        return Histogram(
            edges=[10 ** (self._low + step / self._reported) for step in range(steps + 1)],
            counts=self._counts[1:-1].reshape(steps, -1).sum(dim=1).tolist(),
            below=int(self._counts[0]),
            above=int(self._counts[-1]),
        )
