"""The table of whole answers from known ones: what the columns mean, and the edges."""

import json
from dataclasses import replace

import pytest
from timed_answers import CURVES, timed

from quasar_lab.evaluation.speedup_table import RATES, geometric_mean, speedup_rows
from quasar_lab.evaluation.timed_answer import Arm

PLAIN = Arm("bf16", "none")


def audited_answer(**facts):
    """An answer whose rounds W8A8 made and BF16 audited, under a name that says nothing of that."""
    return replace(timed("pair", "ngram", **facts), rounds_by="w8a8", audits_by="bf16")


def rows_of(answers):
    return {(row.verifier, row.drafter, row.category): row for row in speedup_rows(answers, CURVES, PLAIN)}


def test_a_speedup_is_the_product_of_its_factors():
    rows = rows_of([timed(), timed("w8a8", "ngram", tokens=30, rounds=15, step=0.006, other=0.002)])
    row = rows["w8a8", "ngram", "maths"]
    assert row.speedup == pytest.approx((30 * 0.011) / (15 * 0.008))
    assert row.acceptance_factor == pytest.approx(2)
    assert row.step_factor == pytest.approx(10 / 6)
    product = row.step_factor * row.acceptance_factor * row.other_factor
    assert product == pytest.approx(row.speedup)
    assert row.predicted_speedup == pytest.approx(30 * 0.011 / (15 * 0.006 + 15 * 0.002))
    assert row.mean_acceptance_length == 2
    assert row.tokens_per_second == pytest.approx(30 / (15 * 0.008))
    assert rows["bf16", "none", "maths"].speedup == 1


def test_prefill_counts_for_nothing():
    slow = replace(timed("w8a8"), prefill=1e6)
    assert rows_of([timed(), slow])["w8a8", "none", "maths"].speedup == pytest.approx(1)


def test_the_interval_comes_from_the_questions():
    fast = [timed("w8a8", question=str(n), step=0.004 + 0.001 * (n % 4)) for n in range(12)]
    row = rows_of([*(timed(question=str(n)) for n in range(12)), *fast])["w8a8", "none", "maths"]
    assert row.speedup_low < row.speedup < row.speedup_high
    same = [timed("w8a8", question=str(n), step=0.005) for n in range(12)]
    row = rows_of([*(timed(question=str(n)) for n in range(12)), *same])["w8a8", "none", "maths"]
    assert row.speedup_low == pytest.approx(row.speedup_high)


def mean_of_two_categories():
    answers = [timed(category=c, question=c) for c in "ab"]
    answers += [
        timed("w8a8", "ngram", category="a", question="a", rounds=10, step=0.0045, other=0.001),
        timed("w8a8", "ngram", category="b", question="b", rounds=24, step=0.010, other=0.003),
    ]
    rows = rows_of(answers)
    return [rows["w8a8", "ngram", category] for category in ("a", "b", "mean")]


@pytest.mark.parametrize("column", RATES)
def test_every_rate_of_the_mean_is_the_geometric_mean_over_categories(column):
    a, b, mean = (getattr(row, column) for row in mean_of_two_categories())
    assert mean == pytest.approx((a * b) ** 0.5)


def test_the_mean_has_one_acceptance_and_factors_that_multiply():
    *_, mean = mean_of_two_categories()
    assert mean.tau == pytest.approx(mean.acceptance_factor)
    assert mean.step_factor * mean.acceptance_factor * mean.other_factor == pytest.approx(mean.speedup)
    assert mean.speedup_low == pytest.approx(mean.speedup)  # one question in each category has no spread
    assert (mean.label, mean.category) == ("geometric mean", "mean")


def test_a_mean_of_what_is_partly_unknown_is_unknown():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4)
    assert geometric_mean([2.0, None]) is None
    assert geometric_mean([]) is None


def test_edges_nothing_drafted_nothing_said_nothing_paired():
    rows = rows_of(
        [
            timed(category="silent", tokens=0, rounds=0),
            timed("w8a8", "ngram", category="silent", tokens=0, rounds=0),
            timed("w8a8", "ngram", category="unpaired", question="7"),
        ]
    )
    for category in ("silent", "unpaired"):
        assert rows["w8a8", "ngram", category].speedup is None
    assert rows["w8a8", "ngram", "silent"].mean_acceptance_length is None
    json.dumps([row.to_json() for row in rows.values()], allow_nan=False)


def test_identity_with_plain_is_counted():
    plain, other = timed("w8a8", "none"), timed("w8a8", "ngram")
    assert rows_of([timed(), plain, other])["w8a8", "ngram", "maths"].identical_to_plain == 1
    changed = replace(other, ids=[[1, 2]])
    row = rows_of([timed(), plain, changed])["w8a8", "ngram", "maths"]
    assert (row.identical_to_plain, row.different_from_plain) == (0, ["1"])


def test_an_audited_arm_counts_its_audits():
    curves = {"bf16": {"1": 10.0, "5": 12.0, "9": 20.0}, "w8a8": {"1": 5.0, "5": 6.0}}
    audited = replace(
        audited_answer(rounds=15, step=0.006, other=0.002),
        audit=0.040,
        audit_widths={5: 2, 7: 1},
        audited=16,
        judged=14,
        flips=2,
    )
    found = speedup_rows([timed(), audited], curves, PLAIN)
    row = next(row for row in found if row.verifier == "pair")
    seconds = 15 * 0.008 + 0.040
    assert row.speedup == pytest.approx(30 * 0.011 / seconds)
    assert row.tokens_per_second == pytest.approx(30 / seconds)
    assert row.step_factor == pytest.approx(0.010 / ((15 * 0.006 + 0.040) / 15))
    assert row.step_factor * row.acceptance_factor * row.other_factor == pytest.approx(row.speedup)
    passes = 15 * 0.006 + 2 * 0.012 + 0.016
    assert row.predicted_speedup == pytest.approx(30 * 0.011 / (passes + 15 * 0.002))
    assert (row.audits, row.audit_length, row.flip_rate) == (3, 16 / 3, 2 / 14)
    assert found[0].audits is found[0].audit_length is found[0].flip_rate is None


def test_an_audited_answer_is_compared_with_the_auditors():
    own, audited = timed("w8a8"), audited_answer()
    changed = replace(audited, ids=[[1]])
    for answer, same in ((audited, 1), (changed, 0)):
        rows = rows_of([timed(), replace(own, ids=[[1]]), answer])
        assert rows["pair", "ngram", "maths"].identical_to_plain == same


def test_texts_of_other_draws_are_not_compared():
    (row,) = speedup_rows([timed()], CURVES, PLAIN, sampled=True)
    assert row.identical_to_plain is row.different_from_plain is None
    (row,) = speedup_rows([timed()], CURVES, PLAIN)
    assert (row.identical_to_plain, row.different_from_plain) == (1, [])


def test_a_row_tells_its_factors_and_how_far_its_prediction_is_off():
    rows = rows_of([timed(), timed("w8a8", "ngram", rounds=15, step=0.012, other=0.002), timed("w8a8", question="7")])
    row = rows["w8a8", "ngram", "maths"]
    assert row.factors == {"step": row.step_factor, "acceptance": row.acceptance_factor, "other": row.other_factor}
    assert row.tau == row.mean_acceptance_length == 2
    predicted = 30 * 0.011 / (15 * 0.006 + 15 * 0.002)
    assert row.measured_over_predicted == pytest.approx(30 * 0.011 / (15 * 0.014) / predicted)
    alone = rows["w8a8", "none", "maths"]
    assert (alone.factors, alone.measured_over_predicted) == ({}, None)
