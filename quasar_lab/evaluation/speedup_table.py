"""The table of `bench decode`: from timed answers to speedups, their factors and a prediction.

The speedup of an arm is its time per token against the baseline's (the first verifier without drafter), over the
questions of a category, with a 95 % bootstrap interval over questions, and it is split into

    speedup = step factor × acceptance factor × other factor
              (passes per round)  (tokens per round)  (draft, sampling, host)

so that a gain from longer drafts on different text cannot pass for a faster step. An audit's pass counts to the rounds
that it judges, and tokens are those that stay. Beside the speedup stands the *predicted* one: times of passes measured
on their own, put together with the widths of rounds and audits. If the two differ, something is not understood.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quasar_lab.speculative.pass_times import interpolate

RESAMPLES = 2000

Curves = dict[str, dict[str, float]]
"""Verifier → width (as JSON has it) → milliseconds of a pass."""


@dataclass(frozen=True)
class Answer:
    """One question answered by one arm, all turns. tokens: without those of the prefills. seconds: of decoding, by
    part; audit: of the audits' passes.

    widths, audit_widths: width of a pass → rounds, audits of that width. ids: emitted tokens per turn. audited: tokens
    that audits got; judged: looked at, up to the first one refused in each; flips: refused.
    """

    verifier: str
    drafter: str
    question: str
    category: str
    tokens: int
    rounds: int
    drafted: int
    prefill: float
    verify: float
    draft: float
    sample: float
    host: float
    widths: dict[int, int]
    ids: list[list[int]]
    audit: float = 0.0
    audit_widths: dict[int, int] = field(default_factory=dict)
    audited: int = 0
    judged: int = 0
    flips: int = 0

    @property
    def arm(self) -> tuple[str, str]:
        return self.verifier, self.drafter

    @property
    def overhead(self) -> float:
        """Seconds of decoding outside the passes of verifiers."""
        return self.draft + self.sample + self.host

    @property
    def passes(self) -> float:
        """Seconds of passes: rounds and audits."""
        return self.verify + self.audit

    @property
    def seconds(self) -> float:
        return self.passes + self.overhead


def summarise(answers: Iterable[Answer], curves: Curves, baseline: tuple[str, str]) -> list[dict[str, Any]]:
    """Rows of the table: per arm and category, and per arm the category "mean" (the mean of the categories'
    speedups).

    identical_to_plain: questions whose ids equal those of the same verifier without drafter, or, audited, those of the
    auditor without drafter; different_from_plain: the others, by id.
    """
    by_arm: dict[tuple[str, str], dict[str, list[Answer]]] = {}
    for item in answers:
        by_arm.setdefault(item.arm, {}).setdefault(item.category, []).append(item)
    rows = []
    generator = np.random.default_rng(0)
    for arm, categories in by_arm.items():
        draws, points = [], []
        for category, items in categories.items():
            pairs = _paired(items, by_arm.get(baseline, {}).get(category, []))
            own, auditor = (arm[0], "none"), (arm[0].rpartition("+")[2], "none")
            plain = _paired(items, by_arm.get(auditor if auditor in by_arm else own, {}).get(category, []))
            row = _row(arm, category, items, pairs, curves, baseline)
            row["identical_to_plain"] = sum(mine.ids == other.ids for mine, other in plain) if plain else None
            row["different_from_plain"] = [mine.question for mine, other in plain if mine.ids != other.ids]
            rows.append(row)
            if row["speedup"] is not None:
                resampled = _bootstrap(pairs, generator)
                row["speedup_low"], row["speedup_high"] = _interval(resampled)
                draws.append(resampled)
                points.append(row["speedup"])
        if len(points) > 1:
            low, high = _interval(np.mean(draws, axis=0))
            everything = [item for items in categories.values() for item in items]
            mean = _row(arm, "mean", everything, [], curves, baseline)
            mean.update(speedup=float(np.mean(points)), speedup_low=low, speedup_high=high)
            members = [row for row in rows if (row["verifier"], row["drafter"]) == arm and row["speedup"] is not None]
            same = [row["identical_to_plain"] for row in members]
            mean["identical_to_plain"] = None if None in same else sum(same)
            mean["different_from_plain"] = [question for row in members for question in row["different_from_plain"]]
            for key in ("predicted_speedup", "step_factor", "acceptance_factor", "other_factor"):
                values = [row[key] for row in members if row[key] is not None]
                mean[key] = float(np.mean(values)) if values else None
            rows.append(mean)
    return rows


def _paired(items: list[Answer], others: list[Answer]) -> list[tuple[Answer, Answer]]:
    known = {other.question: other for other in others}
    return [(item, known[item.question]) for item in items if item.question in known]


def _per_token(items: Iterable[Answer]) -> float | None:
    items = list(items)
    tokens = sum(item.tokens for item in items)
    return sum(item.seconds for item in items) / tokens if tokens else None


def _row(
    arm: tuple[str, str],
    category: str,
    items: list[Answer],
    pairs: list[tuple[Answer, Answer]],
    curves: Curves,
    baseline: tuple[str, str],
) -> dict[str, Any]:
    tokens, rounds = sum(item.tokens for item in items), sum(item.rounds for item in items)
    seconds = sum(item.seconds for item in items)
    row: dict[str, Any] = {
        "verifier": arm[0],
        "drafter": arm[1],
        "category": category,
        "prompts": len(items),
        "new_tokens": tokens,
        "rounds": rounds,
        "drafted": sum(item.drafted for item in items),
        "mean_acceptance_length": tokens / rounds if rounds else None,
        "tokens_per_second": tokens / seconds if seconds else None,
        "ms_per_round": 1e3 * seconds / rounds if rounds else None,
        **_audit_columns(items),
    }
    keys = (
        "speedup",
        "speedup_low",
        "speedup_high",
        "predicted_speedup",
        "step_factor",
        "acceptance_factor",
        "other_factor",
    )
    row.update(dict.fromkeys(keys))
    mine, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    own, base = _per_token(mine), _per_token(theirs)
    if own is None or base is None:
        return row
    row["speedup"] = base / own
    own_rounds, base_rounds = sum(item.rounds for item in mine), sum(item.rounds for item in theirs)
    own_tau = sum(item.tokens for item in mine) / own_rounds
    base_tau = sum(item.tokens for item in theirs) / base_rounds
    row["acceptance_factor"] = own_tau / base_tau
    own_step, base_step = (sum(item.passes for item in group) for group in (mine, theirs))
    row["step_factor"] = (base_step / base_rounds) / (own_step / own_rounds)
    row["other_factor"] = row["speedup"] / row["acceptance_factor"] / row["step_factor"]
    passes = [_expected(item, curves) for item in mine]
    if baseline[0] in curves and None not in passes:
        host = sum(item.overhead for item in theirs) / base_rounds
        expected = sum(item.tokens for item in mine) * (1e-3 * curves[baseline[0]]["1"] + host)
        row["predicted_speedup"] = expected / (sum(filter(None, passes)) + sum(item.overhead for item in mine))
    return row


def _expected(item: Answer, curves: Curves) -> float | None:
    """Seconds that the passes of an answer should take, by step times; None where a curve is missing."""
    parts = ((item.verifier.partition("+")[0], item.widths), (item.verifier.rpartition("+")[2], item.audit_widths))
    if not all(name in curves for name, _ in parts):
        return None
    return 1e-3 * sum(
        interpolate(curves[name], width) * count for name, widths in parts for width, count in widths.items()
    )


def _audit_columns(items: list[Answer]) -> dict[str, Any]:
    """How often the auditor came, to how many tokens, and the share of those it looked at that it refused; None where
    there is none."""
    audits = sum(sum(item.audit_widths.values()) for item in items)
    judged = sum(item.judged for item in items)
    return {
        "audits": audits or None,
        "audit_length": sum(item.audited for item in items) / audits if audits else None,
        "flip_rate": sum(item.flips for item in items) / judged if judged else None,
    }


def _bootstrap(pairs: list[tuple[Answer, Answer]], generator: np.random.Generator) -> np.ndarray:
    """Speedups of RESAMPLES resamples of the questions, f64 [RESAMPLES]; resamples without tokens are left at the point
    estimate."""
    own, base = (
        np.array([[pair[side].seconds, pair[side].tokens] for pair in pairs]).astype(np.float64) for side in (0, 1)
    )
    chosen = generator.integers(len(pairs), size=(RESAMPLES, len(pairs)))
    (own_seconds, own_tokens), (base_seconds, base_tokens) = (
        np.moveaxis(group[chosen].sum(axis=1), -1, 0) for group in (own, base)
    )
    usable = (own_tokens > 0) & (base_tokens > 0)
    point = (base[:, 0].sum() / base[:, 1].sum()) / (own[:, 0].sum() / own[:, 1].sum())
    speedups = np.full(RESAMPLES, point)
    speedups[usable] = (base_seconds[usable] / base_tokens[usable]) / (own_seconds[usable] / own_tokens[usable])
    return speedups


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)
