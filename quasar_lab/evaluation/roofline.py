"""What bounds a pass, memory or arithmetic: the roofline.

## Idea

A pass does some operations and reads some bytes. Their quotient is its *arithmetic intensity*. Where it is low, memory
is the bound: operations come as fast as bytes arrive. Where it is high, arithmetic is: the ceiling of the kernel. The
*ridge* is the intensity at which the two meet.

## Choice

Bandwidth and ceilings are measured in the same run as the passes, never taken from a data sheet.

## What is lost

Machines are noisy, and a cache may hold part of what memory was asked for. So a pass may lie a little above its roof.

## Source

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from dataclasses import dataclass

from quasar_lab.evaluation.pass_time import StepResult, StepRow
from quasar_lab.evaluation.pass_timer import Ceiling
from quasar_lab.support.errors import InputError


@dataclass(frozen=True)
class RoofPoint:
    """One width of a verifier under its roof. Rates are billions of operations a second."""

    row: StepRow
    """The measured pass."""
    intensity: float
    """Operations per byte read."""
    possible: float
    """The rate that the roof allows."""
    slow: float
    """The rate at the 80th percentile of the time."""
    measured: float
    """The rate at the median of the time."""
    fast: float
    """The rate at the 20th percentile of the time."""


@dataclass(frozen=True)
class Roof:
    """What memory and arithmetic allow one verifier, and its passes under it."""

    verifier: str
    bandwidth_gb_s: float
    """The slope: GB/s of memory."""
    ceiling: Ceiling
    """The flat part: how fast the kernel computes."""
    points: list[RoofPoint]

    @property
    def ridge(self) -> float:
        """The intensity at which the slope meets the ceiling."""
        return self.ceiling.gop_s_p50 / self.bandwidth_gb_s

    def allowed(self, intensity: float) -> float:
        """The rate that the roof allows at an intensity."""
        return min(self.bandwidth_gb_s * intensity, self.ceiling.gop_s_p50)


def roofs(result: StepResult) -> list[Roof]:
    """The roof of each verifier, in the order they were given. Raises InputError on a result that was made without
    operations and ceilings."""
    if result.ceilings is None or any(row.operations is None for row in result.steps):
        raise InputError("the result has no operations and ceilings; accepted: of `bench step` in this version")
    ceilings = {ceiling.verifier: ceiling for ceiling in result.ceilings}
    found = []
    for name, rows in result.by_verifier().items():
        roof = Roof(name, result.bandwidth_gb_s, ceilings[name], [])
        found.append(Roof(name, result.bandwidth_gb_s, ceilings[name], [_point(roof, row) for row in rows]))
    return found


def _point(roof: Roof, row: StepRow) -> RoofPoint:
    operations = row.operations or 0
    intensity = operations / row.bytes
    slow, measured, fast = (operations / ms / 1e6 for ms in (row.ms_p80, row.ms_p50, row.ms_p20))
    return RoofPoint(row, intensity, roof.allowed(intensity), slow, measured, fast)
