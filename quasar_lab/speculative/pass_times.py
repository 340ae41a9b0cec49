"""Pass times by width: curves, and interpolation between the widths that were measured."""

from collections.abc import Mapping, Sequence
from typing import Any

Curves = Mapping[str, Mapping[Any, float]]
"""Verifier → width → time of a pass, in any one unit; widths as numbers or as JSON has them."""


def between(costs: Sequence[float], width: float) -> float:
    """Costs at whole widths, at a width between two."""
    low = int(width)
    return costs[low] + (costs[low + 1] - costs[low]) * (width - low)


def interpolate(curve: Mapping[Any, float], width: float) -> float:
    """Time of a pass of `width` from those measured: linear between neighbours, and beyond the ends as between the last
    two."""
    points = sorted((int(known), value) for known, value in curve.items())
    if len(points) == 1:
        return points[0][1]
    right = next((place for place, (known, _) in enumerate(points) if known >= width), len(points) - 1)
    (low, before), (high, after) = points[max(right, 1) - 1], points[max(right, 1)]
    return before + (after - before) * (width - low) / (high - low)
