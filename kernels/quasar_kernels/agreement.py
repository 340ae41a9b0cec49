"""When do two results of an op agree? Each function returns None, or one line that says how they differ."""

from collections.abc import Callable

import torch
from torch import Tensor

Agree = Callable[[Tensor, Tensor], str | None]
"""Called with what was found and what was wanted, both on one device."""


def equal(found: Tensor, wanted: Tensor) -> str | None:
    """Bit for bit."""
    if torch.equal(found, wanted):
        return None
    return f"{float((found != wanted).float().mean()):.2%} of the numbers differ"


def near(limit: float) -> Agree:
    """‖found − wanted‖ ≤ limit · ‖wanted‖."""

    def agree(found: Tensor, wanted: Tensor) -> str | None:
        error = float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))
        return None if error <= limit else f"relative error {error:.2e}, accepted {limit:.0e}"

    return agree


def one_step(found: Tensor, wanted: Tensor) -> str | None:
    """For INT8 rows that were rounded from FP32 sums of another order: few integers differ, and each of them by one."""
    apart = (found.int() - wanted.int()).abs()
    share = float((apart > 0).float().mean())
    if int(apart.max()) <= 1 and share <= 0.02:
        return None
    return f"{share:.2%} of the integers differ, by up to {int(apart.max())}; accepted 2 % by 1"
