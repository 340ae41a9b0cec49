"""The expected speedup of speculative decoding from the acceptance rate, γ and pass times."""

from collections.abc import Sequence

import numpy as np

from quasar_lab.speculative.pass_times import interpolate


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
    curve: dict[int, float],
    base_ms: float,
    draft_ms: float = 0.0,
    other_ms: float = 0.0,
) -> np.ndarray:
    """The formula above, f64 [γ, α]. curve: width → ms of a pass, linear between widths; base_ms: T_base(1); draft_ms:
    per drafted token; other_ms: per round."""
    counts = np.asarray(gammas)[:, None]
    passes = np.array([[interpolate(curve, gamma + 1)] for gamma in gammas])
    return (
        expected_tokens(np.asarray(alphas)[None, :], counts)
        * (base_ms + other_ms)
        / (passes + counts * draft_ms + other_ms)
    )
