"""Where does drafting pay? The speedup that the acceptance rate α, γ and measured pass times predict.

## Idea

If each draft is accepted with probability α, independently of the others, a round of γ drafts gives

    E(α, γ) = 1 + α + α² + … + α^γ = (1 − α^(γ+1)) / (1 − α)      tokens

and costs one pass of width γ + 1, γ drafts and what a round costs besides. Plain decoding with the baseline gives one
token for one pass of width 1. So

    speedup(α, γ) = E(α, γ) · (T_base(1) + other) / (T(γ + 1) + γ · draft + other)

## Choice

A run is placed on the map twice: by its τ, at the α that would give this τ, which is what the run is worth, and by the
share of its judged drafts that were accepted, which is what it would be worth if every round had γ drafts. The distance
between the two is what short and empty drafts cost.

## What is lost

Real drafts are not independent (a copied span is accepted until it ends), and a drafter such as n-gram often proposes
nothing.

## Source

Leviathan, Kalman, Matias, arXiv 2211.17192, eq. 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quasar_lab.evaluation.pass_time import StepResult
from quasar_lab.evaluation.round_times import JudgedDrafts, drafting_costs, judged_drafts
from quasar_lab.speculative.pass_times import Curve, interpolate
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.errors import InputError

ALPHAS = np.linspace(0.0, 1.0, 101)


def expected_tokens(alpha: float | np.ndarray, gamma: int | np.ndarray) -> np.ndarray:
    """Tokens that a round of γ drafts gives on average, each accepted with probability α: 1 … γ + 1."""
    alpha, gamma = np.broadcast_arrays(np.asarray(alpha, dtype=np.float64), np.asarray(gamma))
    certain = alpha == 1.0
    return np.where(certain, gamma + 1.0, (1 - alpha ** (gamma + 1)) / np.where(certain, 1.0, 1 - alpha))


def equivalent_alpha(tau: float, gamma: int) -> float:
    """The α at which a round of γ drafts gives τ tokens on average, by bisection; 0 for τ ≤ 1, 1 for τ ≥ γ + 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(expected_tokens(middle, gamma)) < tau else (low, middle)
    return (low + high) / 2


def speedups(
    alphas: Sequence[float] | np.ndarray,
    gammas: Sequence[int],
    curve: Curve,
    base_ms: float,
    draft_ms: float = 0.0,
    other_ms: float = 0.0,
) -> np.ndarray:
    """The formula above, f64 [γ, α].

    curve: width → ms of a pass, linear between widths. base_ms: T_base(1). draft_ms: per drafted token. other_ms: per
    round.
    """
    counts = np.asarray(gammas)[:, None]
    passes = np.array([[interpolate(curve, gamma + 1)] for gamma in gammas])
    return (
        expected_tokens(np.asarray(alphas)[None, :], counts)
        * (base_ms + other_ms)
        / (passes + counts * draft_ms + other_ms)
    )


@dataclass(frozen=True)
class RunWorth:
    """A run on the map: what it is worth by its τ, and by the drafts that were judged."""

    gamma: int
    tau: float
    alpha_of_tau: float
    """The acceptance rate at which every round of γ drafts would give this τ."""
    speedup_of_tau: float
    judged: JudgedDrafts
    speedup_of_judged: float
    """The speedup if every round had γ drafts, accepted as often as the judged ones."""


@dataclass(frozen=True)
class SpeedupMap:
    """The predicted speedup of a verifier with drafts over plain decoding with a baseline, by α and γ."""

    verifier: str
    baseline: str
    gammas: list[int]
    """From 1 to what the widest measured pass holds."""
    curve: dict[int, float]
    """Width → milliseconds of the verifier's pass."""
    base_ms: float
    """Milliseconds of the baseline's pass of width 1."""
    draft_ms: float
    """Milliseconds per drafted token."""
    other_ms: float
    """Milliseconds per round, beside the pass and drafting."""
    values: np.ndarray
    """Speedups, f64 [γ, α]."""
    alphas: np.ndarray

    @property
    def plain(self) -> float:
        """The speedup of the verifier without drafts: above it, drafting pays."""
        return (self.base_ms + self.other_ms) / (self.curve[1] + self.other_ms)

    @property
    def best_gammas(self) -> list[int]:
        """The γ with the largest speedup, for each α."""
        return [self.gammas[place] for place in self.values.argmax(axis=0)]

    def speedup(self, alpha: float, gamma: int) -> float:
        return float(speedups([alpha], [gamma], self.curve, self.base_ms, self.draft_ms, self.other_ms)[0, 0])

    def worth(self, trace: Trace) -> RunWorth | None:
        """Where a run lies on the map; None where it drafted nothing, or its γ is not on the map."""
        gamma = trace.header["gamma"]
        judged = judged_drafts(trace)
        if gamma not in self.gammas or not judged.judged:
            return None
        tau = sum(len(record.emitted_ids) for record in trace.rounds) / len(trace.rounds)
        alpha = equivalent_alpha(tau, gamma)
        return RunWorth(
            gamma=gamma,
            tau=tau,
            alpha_of_tau=alpha,
            speedup_of_tau=self.speedup(alpha, gamma),
            judged=judged,
            speedup_of_judged=self.speedup(judged.share, gamma),
        )


def map_speedups(
    result: StepResult,
    verifier: str,
    baseline: str,
    trace: Trace | None = None,
    draft_ms: float | None = None,
    other_ms: float | None = None,
) -> SpeedupMap:
    """The map of `verifier` over `baseline`, from their measured pass times.

    draft_ms, other_ms: what a drafted token and a round cost; where None, what they cost in `trace`, and without one
    nothing. Raises InputError where a verifier was not timed, or not at width 1 and beyond.
    """
    curves = result.curves()
    for name in (verifier, baseline):
        if name not in curves or 1 not in curves[name] or max(curves[name]) < 2:
            raise InputError(
                f"{name!r} was not timed at width 1 and wider ones; accepted: {', '.join(map(repr, curves))}, with such"
            )
    costs = None if trace is None else drafting_costs(trace)
    draft = draft_ms if draft_ms is not None else costs.per_draft if costs else 0.0
    other = other_ms if other_ms is not None else costs.per_round if costs else 0.0
    gammas = list(range(1, max(curves[verifier])))
    base_ms = curves[baseline][1]
    values = speedups(ALPHAS, gammas, curves[verifier], base_ms, draft, other)
    return SpeedupMap(verifier, baseline, gammas, curves[verifier], base_ms, draft, other, values, ALPHAS)
