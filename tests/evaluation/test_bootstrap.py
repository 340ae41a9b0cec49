"""Bootstrap intervals: what they hold, and that one question is drawn for both arms at once."""

import numpy as np
import pytest

from quasar_lab.evaluation.bootstrap import interval, resampled_speedups, speedup


def test_a_speedup_is_time_per_token_over_time_per_token():
    assert speedup(np.array([6.0, 3.0]), np.array([2.0, 2.0])) == pytest.approx(2.0)


def test_without_tokens_there_is_nothing_to_compare():
    arms = np.array([[6.0, 3.0], [6.0, 0.0]]), np.array([[2.0, 0.0], [2.0, 2.0]])
    assert speedup(*arms).tolist() == [1.0, 1.0]
    assert speedup(*arms, without_tokens=1.5).tolist() == [1.5, 1.5]


def test_a_question_is_drawn_for_both_arms_at_once():
    """Each question is twice as fast, short or long: so is every resample, and the interval has no width."""
    base = np.array([[1.0, 10.0], [90.0, 10.0], [4.0, 10.0]])
    own = base * [0.5, 1.0]
    draws = resampled_speedups(base, own, np.random.default_rng(0), 500)
    assert draws.shape == (500,)
    assert interval(draws) == pytest.approx((2.0, 2.0))


def test_the_interval_covers_the_true_speedup_as_often_as_it_says():
    """Answers drawn from a known law: about 95 % of the intervals hold its speedup."""
    generator, held, runs = np.random.default_rng(1), 0, 200
    for _ in range(runs):
        ratios = generator.normal(2.0, 0.4, 60)
        own = np.stack([np.ones(60), np.full(60, 10.0)], axis=1)
        base = own * np.stack([ratios, np.ones(60)], axis=1)
        low, high = interval(resampled_speedups(base, own, generator, 400))
        held += low <= 2.0 <= high
    assert 0.88 * runs <= held <= 0.99 * runs


def test_the_same_seed_gives_the_same_draws():
    base, own = np.random.default_rng(2).random((2, 9, 2))
    first, second = (resampled_speedups(base, own, np.random.default_rng(7), 20) for _ in "ab")
    assert (first == second).all()
