"""What rounds cost: sums over a trace whose numbers a reader can check by head."""

import pytest
from speed_results import profile_of, trace_of

from quasar_lab.evaluation.round_times import drafting_costs, judged_drafts, round_times, rounds_by
from quasar_lab.support.errors import InputError


def test_times_of_rounds_of_tokens_and_of_passes():
    times = round_times(trace_of())
    assert times.rounds == [10.0, 11.0, 12.0]
    assert times.emitted == [1, 3, 3]
    assert times.ms_per_round == pytest.approx(11.0)
    assert times.ms_per_token == pytest.approx(33 / 7)
    assert times.tau == pytest.approx(7 / 3)
    assert times.verify_share == pytest.approx(27 / 33)
    assert list(times.parts) == ["draft", "verify", "sample", "host"]
    assert times.mean("verify") == pytest.approx(9.0)


def test_a_pass_is_split_by_the_shares_of_the_nearest_width():
    times = round_times(trace_of(), profile_of())
    assert list(times.parts) == ["draft", "products", "attention", "rounding", "other", "sample", "host"]
    assert times.parts["products"] == pytest.approx([4.0, 2.25, 2.5])  # widths 1, 4, 3
    assert [sum(spent) for spent in zip(*times.parts.values(), strict=True)] == pytest.approx(times.rounds)
    with pytest.raises(InputError, match="accepted: of w8a8"):
        round_times(trace_of(), profile_of("bf16"))


def test_a_run_without_rounds_has_no_times():
    empty = trace_of()
    empty.rounds.clear()
    assert round_times(empty).verify_share == 0.0
    with pytest.raises(InputError, match="accepted: of w8a8"):
        round_times(empty, profile_of("bf16"))


def test_the_rounds_of_an_audited_run_are_passes_of_the_verifier_that_writes():
    trace = trace_of()
    trace.header.update(verifier="w8a8-searched+bf16", auditor="bf16")
    assert rounds_by(trace) == "w8a8-searched"
    trace.header.update(verifier="a+b+c", auditor="c")
    assert rounds_by(trace) == "a+b"


def test_drafting_is_paid_by_the_token_and_the_rest_by_the_round():
    trace = trace_of()
    costs = drafting_costs(trace)
    assert (costs.per_draft, costs.per_round) == pytest.approx((3 / 5, 1.0))
    trace.rounds = trace.rounds[:1]  # nothing drafted: looking for a draft is paid by the round
    costs = drafting_costs(trace)
    assert (costs.per_draft, costs.per_round) == pytest.approx((0.0, 2.0))
    trace.rounds.clear()
    costs = drafting_costs(trace)
    assert (costs.per_draft, costs.per_round) == (0.0, 0.0)


def test_drafts_behind_the_first_refused_one_are_not_judged():
    judged = judged_drafts(trace_of())
    assert (judged.accepted, judged.judged) == (4, 5)
    assert judged.share == pytest.approx(0.8)
