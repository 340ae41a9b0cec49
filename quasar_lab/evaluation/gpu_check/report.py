"""The findings as a short table for a terminal, and as the document that is saved."""

from collections.abc import Iterator
from typing import Any

from quasar_lab.evaluation.gpu_check.goals import NARROW, STEP_WIDTHS, goals, sum_of_ops
from quasar_lab.evaluation.gpu_check.results import Findings, Goal, StepFindings
from quasar_lab.support.result import Json

SPEED_KEYS = ("gb_s", "share", "us_", "ms_", "fraction", "floor", "gop_s", "tokens_per_second", "seconds")
"""Parts of the keys of every number that says something about speed."""


def document(findings: Findings, rehearsal: bool) -> Json:
    """What is saved; a rehearsal's document has no number about speed."""
    found = findings.to_json()
    return {
        **(without_speed(found) if rehearsal else found),
        "rehearsal": rehearsal,
        "reach": [goal.to_json() for goal in goals(None if rehearsal else findings)],
    }


def without_speed(value: Any) -> Any:
    """The same document with None for every number about speed."""
    if isinstance(value, list):
        return [without_speed(item) for item in value]
    if isinstance(value, dict):
        return {
            key: None
            if not isinstance(item, (list, dict)) and any(part in key for part in SPEED_KEYS)
            else without_speed(item)
            for key, item in value.items()
        }
    return value


def table(findings: Findings, rehearsal: bool) -> str:
    """The findings in a few lines."""
    return "\n".join(_Table(findings, rehearsal).lines())


class _Table:
    """Lines of the table. In a rehearsal every speed is shown as a dash."""

    def __init__(self, findings: Findings, rehearsal: bool):
        self._findings, self._rehearsal = findings, rehearsal

    def lines(self) -> Iterator[str]:
        findings = self._findings
        yield f"{findings.gpu or 'no GPU: a rehearsal, no speed is measured'}   seed {findings.seed}"
        for name, cases in findings.checked.items():
            yield f"{name}: {sum(case.fault is None for case in cases)} of {len(cases)} right"
        for line in findings.wrong:
            yield f"  WRONG {line}"
        if findings.step is not None:
            yield from self._steps(findings.step)
        yield from self._products()
        for goal in goals(None if self._rehearsal else findings):
            yield self._goal(goal)

    def _speed(self, value: float | None) -> str:
        return "–" if value is None or self._rehearsal else _shown(value)

    def _steps(self, step: StepFindings) -> Iterator[str]:
        """Passes by width; the passes without graphs and without overlap; the ops of a pass, added up."""
        if step.measured is not None:
            yield f"copy {self._speed(step.measured.bandwidth_gb_s)} GB/s; ms per step (÷ floor):"
        for width in STEP_WIDTHS if step.passes else ():
            cells = [
                f"{verifier} {self._speed(row.ms_p50)} ({self._speed(1 / row.fraction_of_floor)})"
                for (verifier, of), row in step.passes.items()
                if of == width
            ]
            yield f"  width {width:2}  {'   '.join(cells)}"
        for rows, how in ((step.eager, "graphs"), (step.in_turn, "overlap")):
            for row in rows:
                yield f"  without {how}, {row.verifier} at width {row.width}: {self._speed(row.ms_p50)} ms"
        for (verifier, width), found in step.passes.items():
            if width == NARROW:
                alone = self._speed(sum_of_ops(self._findings, verifier, width))
                line = f"  {verifier} at width {width}, sum of its ops alone: {alone} ms of"
                device = found.device_ms_p50
                on_device = "" if device is None else f" ({self._speed(device)} ms on the device)"
                yield f"{line} {self._speed(found.ms_p50)} ms{on_device}"

    def _products(self) -> Iterator[str]:
        """Per product, the worst and the best of its widths."""
        shares: dict[tuple[str, str], list[float]] = {}
        for row in self._findings.products or []:
            shares.setdefault((row.op, row.name), []).append(row.share_of_copy)
        for (op, name), found in shares.items():
            yield f"  {op} {name:12} {self._speed(min(found))} to {self._speed(max(found))} of copy, widths 1…16"

    def _goal(self, goal: Goal) -> str:
        state = {None: "not measured", True: "met", False: "MISSED"}[goal.met]
        return f"{goal.goal}: {self._speed(goal.value)} (goal {_shown(goal.limit)}): {state}"


def _shown(value: float) -> str:
    """Three digits that count, or a whole number from 1000 on."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
