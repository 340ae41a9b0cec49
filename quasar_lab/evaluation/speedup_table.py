"""The table of `bench decode`: from timed answers to speedups, their factors and a prediction.

## Idea

The speedup of an arm is the baseline's time per token over its own, over the questions of a category. A 95 % bootstrap
interval over questions stands beside it. The speedup is the product of three factors:

    speedup = step factor × acceptance factor × other factor
              (passes per round)  (tokens per round)  (draft, sampling, host)

So a gain from longer drafts on different text cannot be mistaken for a faster step.

## Choice

The pass of an audit counts to the rounds that it judges, and tokens are those that stay.

The row "mean" holds *geometric means over the categories*, in every column that is a rate or a ratio. So a category
with many questions does not decide it, the factors of the mean still multiply to its speedup, and its τ is its
acceptance factor. With an arithmetic mean none of that is so. Counts (prompts, tokens, rounds, audits) are sums.

Beside the speedup stands the *predicted* one: pass times that were measured on their own, put together with the widths
that rounds and audits had. If the two differ, then something about the run is not understood.

## What is lost

Arms are compared on questions that both have answered. The interval does not hold what slows a whole run.

## Source

Percentile bootstrap: Efron, "Bootstrap methods: another look at the jackknife" (1979).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log

import numpy as np

from quasar_lab.evaluation.bootstrap import interval, resampled_speedups
from quasar_lab.evaluation.timed_answer import Arm, TimedAnswer
from quasar_lab.speculative.pass_times import interpolate
from quasar_lab.support.result import Json, Result

RESAMPLES = 2000

MEAN = "mean"
"""The category of the row that is the mean over categories."""

MEAN_NAME = "geometric mean"
"""Which mean that is, for people."""

WidthTimes = dict[str, dict[str, float]]
"""Verifier → width (a text, as JSON has it) → milliseconds of a pass."""


@dataclass(frozen=True)
class SpeedupRow(Result):
    """One arm on one category of questions. A number is None where nothing can be compared or counted."""

    verifier: str
    drafter: str
    category: str
    """A category of questions, or "mean"."""
    prompts: int
    """Questions answered."""
    new_tokens: int
    """Without the one that each prefill gives."""
    rounds: int
    drafted: int
    """Tokens that the drafter proposed."""
    mean_acceptance_length: float | None
    """New tokens per round."""
    tokens_per_second: float | None
    """Of decoding, without the prefill."""
    ms_per_round: float | None
    audits: int | None = None
    audit_length: float | None = None
    """Tokens per audit."""
    flip_rate: float | None = None
    """The share of the tokens that audits looked at that they refused."""
    speedup: float | None = None
    """The baseline's time per token over this arm's."""
    speedup_low: float | None = None
    """Lower end of the 95 % interval over questions."""
    speedup_high: float | None = None
    """Upper end of the 95 % interval over questions."""
    predicted_speedup: float | None = None
    """From pass times that were measured on their own."""
    step_factor: float | None = None
    """The baseline's seconds of passes per round over this arm's."""
    acceptance_factor: float | None = None
    """This arm's tokens per round over the baseline's."""
    other_factor: float | None = None
    """What drafting, sampling and the host change: the rest of the speedup."""
    identical_to_plain: int | None = None
    """Answers equal to those without a drafter: of the auditor where there is one, else of the same verifier. None at a
    temperature above 0, where other draws give other text and only the distribution is the same."""
    different_from_plain: list[str] | None = None
    """Ids of the questions whose answers are not equal; None at a temperature above 0."""

    @property
    def arm(self) -> Arm:
        return Arm(self.verifier, self.drafter)

    @property
    def tau(self) -> float | None:
        """τ, the mean acceptance length."""
        return self.mean_acceptance_length

    @property
    def is_mean(self) -> bool:
        """Whether this is the mean over categories."""
        return self.category == MEAN

    @property
    def label(self) -> str:
        """The category for people: the mean says which mean it is."""
        return MEAN_NAME if self.is_mean else self.category

    @property
    def factors(self) -> dict[str, float]:
        """The factors whose product is the speedup: step, acceptance, other. Empty where there is no speedup."""
        factors = {"step": self.step_factor, "acceptance": self.acceptance_factor, "other": self.other_factor}
        return {name: factor for name, factor in factors.items() if factor is not None}

    @property
    def measured_over_predicted(self) -> float | None:
        """The speedup over the predicted one; None where there is no prediction."""
        if self.speedup is None or self.predicted_speedup is None:
            return None
        return self.speedup / self.predicted_speedup


Pairs = list[tuple[TimedAnswer, TimedAnswer]]
"""Answers of two arms to the same questions."""


def speedup_rows(
    answers: Iterable[TimedAnswer], pass_ms: WidthTimes, baseline: Arm, *, sampled: bool = False
) -> list[SpeedupRow]:
    """Rows of the table: per arm and category, and per arm the geometric mean over categories where there are two or
    more.

    pass_ms: measured on their own, for the prediction. sampled: the temperature is above 0, so texts are not compared.
    """
    rows = SpeedupTable(answers, pass_ms, baseline).rows()
    if sampled:
        return [replace(row, identical_to_plain=None, different_from_plain=None) for row in rows]
    return rows


class SpeedupTable:
    """Answers by arm and category, and the comparison of each arm with the baseline."""

    def __init__(self, answers: Iterable[TimedAnswer], pass_ms: WidthTimes, baseline: Arm):
        self._answers: dict[Arm, dict[str, list[TimedAnswer]]] = {}
        for answer in answers:
            self._answers.setdefault(answer.arm, {}).setdefault(answer.category, []).append(answer)
        self._pass_ms = pass_ms
        self._baseline = baseline
        self._generator = np.random.default_rng(0)

    def rows(self) -> list[SpeedupRow]:
        """All rows, arms and categories in the order in which they were first answered."""
        rows = []
        for categories in self._answers.values():
            compared: list[SpeedupRow] = []
            resamples: list[np.ndarray] = []
            for category, answers in categories.items():
                row = self._category_row(category, answers)
                if row.speedup is not None:
                    draws = self._resampled(self._pairs(answers, self._baseline))
                    row = _with_interval(row, draws)
                    compared.append(row)
                    resamples.append(draws)
                rows.append(row)
            if len(compared) > 1:
                everything = [answer for answers in categories.values() for answer in answers]
                rows.append(_mean_row(everything, compared, np.exp(np.mean(np.log(resamples), axis=0))))
        return rows

    def _category_row(self, category: str, answers: list[TimedAnswer]) -> SpeedupRow:
        plain = self._pairs(answers, self._plain_arm(answers[0]))
        row = replace(
            _counted_row(category, answers),
            identical_to_plain=sum(mine.ids == other.ids for mine, other in plain) if plain else None,
            different_from_plain=[mine.question for mine, other in plain if mine.ids != other.ids],
        )
        return self._compared(row, self._pairs(answers, self._baseline))

    def _plain_arm(self, answer: TimedAnswer) -> Arm:
        """The arm whose text an answer must equal at temperature 0: its auditor's, if that one runs, else its own
        verifier's, without a drafter."""
        auditor = Arm(answer.audits_by or answer.verifier, "none")
        return auditor if auditor in self._answers else Arm(answer.verifier, "none")

    def _pairs(self, answers: list[TimedAnswer], other: Arm) -> Pairs:
        """Answers that another arm has given too, with those of that arm."""
        category = answers[0].category
        known = {answer.question: answer for answer in self._answers.get(other, {}).get(category, [])}
        return [(answer, known[answer.question]) for answer in answers if answer.question in known]

    def _compared(self, row: SpeedupRow, pairs: Pairs) -> SpeedupRow:
        """The row with its speedup over the baseline, the factors of it and the prediction; without, where one of the
        two has no tokens."""
        own, base = Totals([pair[0] for pair in pairs]), Totals([pair[1] for pair in pairs])
        if not own.tokens or not base.tokens:
            return row
        speedup = (base.seconds / base.tokens) / (own.seconds / own.tokens)
        acceptance_factor = (own.tokens / own.rounds) / (base.tokens / base.rounds)
        step_factor = (base.pass_seconds / base.rounds) / (own.pass_seconds / own.rounds)
        return replace(
            row,
            speedup=speedup,
            predicted_speedup=self._predicted(own, base),
            step_factor=step_factor,
            acceptance_factor=acceptance_factor,
            other_factor=speedup / acceptance_factor / step_factor,
        )

    def _predicted(self, own: "Totals", base: "Totals") -> float | None:
        """The speedup from pass times that were measured on their own; None where one is missing.

        The overhead of both arms is the measured one.
        """
        base_ms = self._pass_ms.get(self._baseline.verifier)
        passes = [predicted_pass_seconds(answer, self._pass_ms) for answer in own.answers]
        known = [seconds for seconds in passes if seconds is not None]
        if base_ms is None or len(known) < len(passes):
            return None
        base_seconds = own.tokens * (1e-3 * base_ms["1"] + base.overhead / base.rounds)
        return base_seconds / (sum(known) + own.overhead)

    def _resampled(self, pairs: Pairs) -> np.ndarray:
        """Speedups of resamples of the questions, f64 [RESAMPLES]; resamples without tokens get the point estimate."""
        own, base = (np.array([[pair[side].seconds, pair[side].tokens] for pair in pairs]) for side in (0, 1))
        point = (base[:, 0].sum() / base[:, 1].sum()) / (own[:, 0].sum() / own[:, 1].sum())
        return resampled_speedups(base, own, self._generator, RESAMPLES, without_tokens=float(point))


class Totals:
    """Sums over answers of one arm."""

    def __init__(self, answers: Sequence[TimedAnswer]):
        self.answers = answers
        self.tokens = sum(answer.tokens for answer in answers)
        self.rounds = sum(answer.rounds for answer in answers)
        self.drafted = sum(answer.drafted for answer in answers)
        self.seconds = sum(answer.seconds for answer in answers)
        self.pass_seconds = sum(answer.pass_seconds for answer in answers)
        self.overhead = sum(answer.overhead for answer in answers)
        self.audits = sum(sum(answer.audit_widths.values()) for answer in answers)
        self.audited = sum(answer.audited for answer in answers)
        self.judged = sum(answer.judged for answer in answers)
        self.flips = sum(answer.flips for answer in answers)


def predicted_pass_seconds(answer: TimedAnswer, pass_ms: WidthTimes) -> float | None:
    """Seconds that the passes of an answer should take, by pass times measured on their own; None where these are
    missing."""
    parts = [(answer.rounds_by, answer.widths)]
    if answer.audits_by is not None:
        parts.append((answer.audits_by, answer.audit_widths))
    if not all(name in pass_ms for name, _ in parts):
        return None
    return 1e-3 * sum(
        interpolate(pass_ms[name], width) * count for name, widths in parts for width, count in widths.items()
    )


def _counted_row(category: str, answers: list[TimedAnswer]) -> SpeedupRow:
    """A row with what is counted and timed of these answers alone."""
    total = Totals(answers)
    return SpeedupRow(
        verifier=answers[0].verifier,
        drafter=answers[0].drafter,
        category=category,
        prompts=len(answers),
        new_tokens=total.tokens,
        rounds=total.rounds,
        drafted=total.drafted,
        mean_acceptance_length=total.tokens / total.rounds if total.rounds else None,
        tokens_per_second=total.tokens / total.seconds if total.seconds else None,
        ms_per_round=1e3 * total.seconds / total.rounds if total.rounds else None,
        audits=total.audits or None,
        audit_length=total.audited / total.audits if total.audits else None,
        flip_rate=total.flips / total.judged if total.judged else None,
    )


def _with_interval(row: SpeedupRow, draws: np.ndarray) -> SpeedupRow:
    low, high = interval(draws)
    return replace(row, speedup_low=low, speedup_high=high)


RATES = (
    "mean_acceptance_length",
    "tokens_per_second",
    "ms_per_round",
    "speedup",
    "predicted_speedup",
    "step_factor",
    "acceptance_factor",
    "other_factor",
)
"""Columns of which the row "mean" holds the geometric mean."""


def _mean_row(answers: list[TimedAnswer], rows: list[SpeedupRow], draws: np.ndarray) -> SpeedupRow:
    """The geometric mean over the rows of an arm that have a speedup. Counts are of all answers of the arm."""
    same = [row.identical_to_plain for row in rows]
    counted = [count for count in same if count is not None]
    rates: Json = {name: geometric_mean(getattr(row, name) for row in rows) for name in RATES}
    mean = replace(
        _counted_row(MEAN, answers),
        identical_to_plain=sum(counted) if len(counted) == len(same) else None,
        different_from_plain=[question for row in rows for question in row.different_from_plain or ()],
        **rates,
    )
    return _with_interval(mean, draws)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of positive values; None where one of them is missing, or there is none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return exp(fsum(map(log, known)) / len(known)) if known and len(known) == len(found) else None
