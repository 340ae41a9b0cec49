"""Traces survive the disk, and refuse what is none."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import SamplingDrafter, ToyVerifier

import quasar_lab as ql
from quasar_lab.errors import TraceError
from quasar_lab.replay import rescore
from quasar_lab.trace import Round, Trace, acceptance

KEYS = {
    "header": "schema kind model checksum recipe verifier drafter gamma sampling device backend versions prompt_ids "
    "prompt_pieces prompt_text started",
    "round": "kind index position draft_ids draft_pieces parents source q p u states emitted_ids emitted_pieces "
    "emitted_states top margin ms",
    "footer": "kind summary",
}
SUMMARY = (
    "text token_ids prompt_tokens new_tokens finish_reason verifier drafter gamma rounds mean_acceptance_length "
    "draft_acceptance_rate acceptance_histogram survival seconds tokens_per_second device backend model versions"
)


@pytest.fixture(scope="module")
def trace():
    return ql.generate(ToyVerifier(), [1, 2], drafter=SamplingDrafter(1), temperature=1.0, max_new_tokens=30)


def test_documented_keys_are_there(trace, tmp_path):
    trace.save(tmp_path / "run.jsonl")
    records = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert records[0]["schema"] == "quasar-trace/1"
    for record in records:
        if record["kind"] in KEYS:
            assert set(KEYS[record["kind"]].split()) <= set(record), record["kind"]
    assert set(SUMMARY.split()) <= set(records[-1]["summary"])
    assert set(records[-1]["summary"]["seconds"]) == {"prefill", "draft", "verify", "sample", "host", "total"}


def test_load_gives_what_was_saved(trace, tmp_path):
    trace.save(tmp_path / "run.jsonl")
    assert Trace.load(tmp_path / "run.jsonl") == trace


@pytest.mark.parametrize("content", ["", "nonsense", "{}", '{"kind": "header", "schema": "other/1"}', "[]", "\x00\xff"])
def test_what_is_no_trace_is_refused(content, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(TraceError):
        Trace.load(path)


def test_a_damaged_line_is_named(trace, tmp_path):
    path = tmp_path / "run.jsonl"
    trace.save(path)
    lines = path.read_text().splitlines()
    lines[4] = lines[4][:50]
    path.write_text("\n".join(lines))
    with pytest.raises(TraceError, match="line 5"):
        Trace.load(path)


def test_a_failed_save_leaves_nothing(trace, tmp_path):
    with pytest.raises(OSError, match="run"):
        trace.save(tmp_path / ("run" * 200))
    assert list(tmp_path.iterdir()) == []


def rounds_from(pairs):
    return [
        Round(
            0,
            0,
            [0] * n,
            [""] * n,
            None,
            None,
            [],
            [],
            [],
            ["accepted"] * a + ["rejected"] * (n - a),
            [],
            [],
            [],
            [],
            [],
            {},
        )
        for n, a in pairs
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=12))
def test_acceptance_counts(pairs):
    found = acceptance(rounds_from(pairs), 6)
    drafted, kept = sum(n for n, _ in pairs), sum(a for _, a in pairs)
    assert found["draft_acceptance_rate"] == (kept / drafted if drafted else None)
    assert sum(found["acceptance_histogram"]) == len(pairs)
    assert sum(i * n for i, n in enumerate(found["acceptance_histogram"])) == kept
    for place, share in enumerate(found["survival"], 1):
        reached = [a for n, a in pairs if n >= place]
        assert share == (sum(a >= place for a in reached) / len(reached) if reached else None)


def test_the_same_verifier_never_flips_and_another_does(trace):
    again = rescore(trace, ToyVerifier())
    assert [row.other["top"] for row in again.rounds] == [row.top for row in trace.rounds]
    assert not any(flip for row in again.rounds for flip in row.other["flip"])
    other = rescore(trace, ToyVerifier(seed=4))
    assert any(flip for row in other.rounds for flip in row.other["flip"])
    assert trace.rounds[0].other is None, "the trace given was changed"
