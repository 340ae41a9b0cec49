"""The goals for speed on a GPU, and what a step should take by the times of its ops alone."""

from collections.abc import Sequence

from quasar_lab.evaluation.gpu_check.results import Findings, Goal, ProductTime

STEP_WIDTHS = (1, 2, 4, 6, 8, 16, 32, 48)
"""Widths at which a step is timed."""
NARROW = 8
"""The widest step that has a goal: a verify pass is hardly ever wider."""
PRODUCT_WIDTHS = range(1, 17)
"""Widths at which products are timed."""


def goals(findings: Findings | None) -> list[Goal]:
    """Every goal, with what was measured. findings: None in a rehearsal, which measures nothing."""
    products = [] if findings is None else findings.complete_products
    steps = {} if findings is None or findings.step is None else findings.step.passes
    shares = [share_of_copy(products, "linear_w8a8", width) for width in PRODUCT_WIDTHS] if products else []
    widths = [width for width in STEP_WIDTHS if width <= NARROW] if steps else []
    ratios = [steps["w8a8", width].ms_p50 / steps["bf16", width].ms_p50 for width in widths]
    floors = [1 / steps["bf16", width].fraction_of_floor for width in widths]
    return [
        _at_least("W8A8 products, share of the copy bandwidth, worst of widths 1…16", shares, 0.75),
        _at_most("W8A8 step / BF16 step, worst of widths 1…8", ratios, 0.60),
        _at_most("BF16 step / its floor, worst of widths 1…8", floors, 1.25),
    ]


def _at_least(goal: str, values: Sequence[float], limit: float) -> Goal:
    worst = min(values, default=None)
    return Goal(goal, worst, limit, met=None if worst is None else worst >= limit)


def _at_most(goal: str, values: Sequence[float], limit: float) -> Goal:
    worst = max(values, default=None)
    return Goal(goal, worst, limit, met=None if worst is None else worst <= limit)


def share_of_copy(products: Sequence[ProductTime], op: str, width: int) -> float:
    """The time in which a copy would read the weights of all products of a step, over the time that they take."""
    here = [row for row in products if row.op == op and row.width == width]
    copy = sum(row.count * row.us_p50 * row.share_of_copy for row in here)
    return copy / sum(row.count * row.us_p50 for row in here)


def sum_of_ops(findings: Findings, verifier: str, width: int) -> float | None:
    """Milliseconds of all ops of a step, each timed alone; None where not all of them were timed."""
    products = [row for row in findings.complete_products if (row.op, row.width) == (f"linear_{verifier}", width)]
    others = [row for row in findings.complete_other if row.width == width]
    if not products or not others:
        return None
    spent = sum(row.count * row.us_p50 for row in products)
    spent += sum(row.count[verifier] * row.us_p50 for row in others)
    return 1e-3 * spent
