"""How sure is a speedup? Bootstrap intervals over questions.

## Idea

Two arms answer the same questions. The speedup is the time per token of one over the time per token of the other, over
all questions. How much of it is due to these very questions? The percentile bootstrap (Efron, 1979) draws as many
questions as there are, with replacement, computes the speedup of what it drew, and repeats that. The middle 95 % of
those speedups are the interval.

## Choice

Questions are drawn, not tokens: the tokens of one answer belong together. A question is drawn for both arms at once,
since a long answer is long for both.

## What is lost

Noise that hits every question alike, such as a machine that is slow all day, is not in the interval.
"""

import numpy as np


def speedup(base: np.ndarray, own: np.ndarray, *, without_tokens: float = 1.0) -> np.ndarray:
    """Time per token of `base` over that of `own`; both f64 […, 2]: seconds, tokens. Where one of the two has no
    tokens, `without_tokens`."""
    usable = (base[..., 1] > 0) & (own[..., 1] > 0)
    base_tokens, own_tokens = (np.where(arm[..., 1] > 0, arm[..., 1], 1.0) for arm in (base, own))
    return np.where(usable, (base[..., 0] / base_tokens) / np.maximum(own[..., 0] / own_tokens, 1e-12), without_tokens)


def resampled_speedups(
    base: np.ndarray, own: np.ndarray, generator: np.random.Generator, resamples: int, *, without_tokens: float = 1.0
) -> np.ndarray:
    """The speedup of `own` over `base` in each resample of the questions, f64 [resamples].

    base, own: f64 [questions, 2], seconds and tokens of each question. without_tokens: the speedup of a resample in
    which one of the two has no tokens.
    """
    chosen = generator.integers(len(own), size=(resamples, len(own)))
    return speedup(base[chosen].sum(axis=1), own[chosen].sum(axis=1), without_tokens=without_tokens)


def interval(draws: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the draws: their 2.5 % and 97.5 % quantiles."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)
