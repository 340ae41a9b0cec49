"""How long a pass of any width takes, from the widths that were measured.

## Idea

Passes are timed at a few widths. A *curve* holds these times by width, and what lies between two widths is read off the
straight line between them.

## What is lost

The time of a pass jumps where a kernel goes over to its next tile. Between two measured widths that jump is a slope.
"""

from collections.abc import Mapping, Sequence

Curve = Mapping[int, float] | Mapping[str, float]
"""Width → time of a pass, in any one unit. Widths are numbers, or texts as JSON has them."""

Curves = Mapping[str, Curve]
"""Verifier → its curve."""


def between(costs: Sequence[float], width: float) -> float:
    """The cost at a width between two whole ones. costs: by whole width, from 0 on."""
    low = int(width)
    return costs[low] + (costs[low + 1] - costs[low]) * (width - low)


def interpolate(curve: Curve, width: float) -> float:
    """Time of a pass of `width` from those measured: linear between neighbours, and beyond the ends as between the last
    two."""
    points = sorted((int(known), value) for known, value in curve.items())
    if len(points) == 1:
        return points[0][1]
    right = next((place for place, (known, _) in enumerate(points) if known >= width), len(points) - 1)
    low, before = points[max(right, 1) - 1]
    high, after = points[max(right, 1)]
    return before + (after - before) * (width - low) / (high - low)
