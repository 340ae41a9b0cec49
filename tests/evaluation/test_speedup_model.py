"""The expected speedup: the formula against what it is a sum of, and a run on the map."""

import numpy as np
import pytest
from speed_results import steps_of, trace_of

from quasar_lab.evaluation.speedup_model import equivalent_alpha, expected_tokens, map_speedups, speedups
from quasar_lab.support.errors import InputError


@pytest.mark.parametrize("gamma", [1, 3, 7])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
def test_expected_tokens_are_those_of_the_sum_over_what_can_happen(alpha, gamma):
    """k drafts accepted, then one refused: k + 1 tokens, with probability α^k (1 − α); all accepted: γ + 1."""
    exact = sum((k + 1) * alpha**k * (1 - alpha) for k in range(gamma)) + (gamma + 1) * alpha**gamma
    assert float(expected_tokens(alpha, gamma)) == pytest.approx(exact)


def test_expected_tokens_are_those_of_drawn_rounds():
    draws = np.random.default_rng(3).random((200_000, 5)) < 0.7
    tokens = 1 + np.cumprod(draws, axis=1).sum(axis=1)
    assert tokens.mean() == pytest.approx(float(expected_tokens(0.7, 5)), abs=0.02)


def test_equivalent_alpha_undoes_expected_tokens():
    for alpha in (0.05, 0.5, 0.95):
        assert equivalent_alpha(float(expected_tokens(alpha, 6)), 6) == pytest.approx(alpha, abs=1e-9)
    assert equivalent_alpha(1.0, 4) == pytest.approx(0.0, abs=1e-6)
    assert equivalent_alpha(5.0, 4) == pytest.approx(1.0, abs=1e-6)


def test_speedups_are_time_per_token_over_time_per_token():
    curve = {1: 5.0, 2: 6.0, 6: 10.0}
    values = speedups([0.0, 1.0], [1, 3], curve, base_ms=10.0, draft_ms=0.5, other_ms=1.0)
    assert values[0] == pytest.approx([11 / (6 + 0.5 + 1), 2 * 11 / (6 + 0.5 + 1)])
    assert values[1] == pytest.approx([11 / (8 + 1.5 + 1), 4 * 11 / (8 + 1.5 + 1)])  # width 4: between 2 and 6


def test_a_run_is_placed_by_its_tau_and_by_its_judged_drafts():
    found = map_speedups(steps_of(widths=(1, 4, 8)), "w8a8", "bf16", trace_of())
    assert found.draft_ms == pytest.approx(3 / 5)
    assert found.other_ms == pytest.approx(1.0)
    assert found.plain == pytest.approx((21 + 1) / (11 + 1))
    run = found.worth(trace_of())
    assert run.judged.share == pytest.approx(4 / 5)
    assert float(expected_tokens(run.alpha_of_tau, 3)) == pytest.approx(run.tau) == pytest.approx(7 / 3)
    for alpha, speedup in ((run.alpha_of_tau, run.speedup_of_tau), (0.8, run.speedup_of_judged)):
        assert speedup == pytest.approx(float(expected_tokens(alpha, 3)) * 22 / (14 + 3 * 3 / 5 + 1))


def test_the_best_gamma_is_the_one_with_the_largest_speedup():
    found = map_speedups(steps_of(widths=(1, 4, 8)), "w8a8", "bf16")
    assert found.draft_ms == found.other_ms == 0.0
    assert (found.best_gammas[0], found.best_gammas[-1]) == (1, 7)
    for column, gamma in enumerate(found.best_gammas):
        assert found.values[gamma - 1, column] == found.values[:, column].max()


def test_a_run_that_drafted_nothing_or_too_much_is_not_on_the_map():
    found = map_speedups(steps_of(widths=(1, 4)), "w8a8", "bf16")
    silent, wide = trace_of(), trace_of()
    silent.rounds = silent.rounds[:1]
    wide.header["gamma"] = 12
    assert found.worth(silent) is None
    assert found.worth(wide) is None
    with pytest.raises(InputError, match="'w4a8' was not timed"):
        map_speedups(steps_of(), "w4a8", "bf16")
