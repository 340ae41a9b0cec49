"""Traces survive the disk, and refuse what is none."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import FixedDrafter, SamplingDrafter, ToyVerifier

import quasar_lab as ql
from quasar_lab.cli import app
from quasar_lab.evaluation.rescore import rescore
from quasar_lab.speculative.trace import Round, Trace, acceptance
from quasar_lab.support.errors import StorageError, TraceError

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
    lines = path.read_text().split("\n")
    lines[4] = lines[4][:50]
    path.write_text("\n".join(lines))
    with pytest.raises(TraceError, match="line 5"):
        Trace.load(path)


DROP = object()
ROUND = {
    "index": ("1", None, 2**70),
    "draft_ids": ([2**70], ["1"], [-1], "12", [0] * 17),
    "draft_pieces": (None, [], [5, 5, 5, 5], DROP),
    "source": (5, {}, {"type": "ngram", "start": "0"}, {"type": "x", "deep": json.loads("[" * 100 + "]" * 100)}),
    "states": (["accepted"], ["foo"] * 4, None),
    "q": ([], ["1"] * 4),
    "p": ([], [float("nan")] * 4, [-1] * 4),
    "u": ([], ["x"] * 4),
    "emitted_ids": ([], "12", [True]),
    "emitted_pieces": ([], ["\ud800"]),
    "emitted_states": ([], ["foo"]),
    "top": ([], [[]] * 5, [[[1, 2, 3]]] * 5, [[[1, "a"]]] * 5, None),
    "margin": ([], [float("inf")] * 5),
    "ms": ({}, {"draft": float("nan")}, 5, {"draft": "1", "verify": 1, "sample": 1, "host": 1}),
    "other": ({}, 5, {"verifier": "x", "top": [], "margin": [], "decision": [], "flip": []}),
    "unheard_of": (1,),
}
HEADER = {
    **dict.fromkeys(("model", "verifier", "drafter", "checksum", "recipe", "device"), (DROP, 5, None, "\udc80")),
    "gamma": (DROP, 0, "4", 10**9),
    "sampling": (DROP, None, {}, {"temperature": "0", "top_k": 0, "top_p": 1.0, "seed": 0}, {"heat": 1}),
    "prompt_ids": (DROP, "1", [2**70], [1]),
    "prompt_pieces": (DROP, [1, 2]),
    "versions": ([], {"torch": 2}),
}
PREFILL = {"emitted_ids": ([], "1"), "emitted_pieces": ([],), "top": ([], [[]]), "ms": (None, float("nan"))}
FOOTER = {"summary": (DROP, 5, {}, {"text": 5})}
PLACES = ((0, HEADER), (1, PREFILL), (2, ROUND), (-1, FOOTER))
HOSTILE = [(line, key, value) for line, forms in PLACES for key, values in forms.items() for value in values]


@pytest.fixture(scope="module")
def records(trace):
    whole = list(rescore(trace, ToyVerifier()).records())
    assert len(whole[2]["draft_ids"]) == 4
    return whole


@pytest.mark.parametrize(("line", "key", "value"), HOSTILE)
def test_every_key_of_every_record_has_a_form(records, tmp_path, line, key, value):
    """What a display or a rescoring would trip over is refused when the file is read, with its line."""
    changed = copy.deepcopy(records)
    changed[line].pop(key, None)
    if value is not DROP:
        changed[line][key] = value
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, changed)))
    with pytest.raises(TraceError, match=f"line {line % len(changed) + 1} of .* is not a trace record: "):
        Trace.load(path)


@pytest.mark.parametrize(
    "line", ["[" * 100_000, "5", "null", '{"kind": 5}', '{"kind": {}}', "1" * 5000, '{"a": 1e999}']
)
def test_lines_that_hold_no_record(records, tmp_path, line):
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps(records[0]) + "\n\n" + line)
    with pytest.raises(TraceError, match="line 3"):
        Trace.load(path)


@pytest.mark.parametrize("mark", ["\u2028", "\u0085", "\x0b", "\x1e", "\r", "\n"])
def test_every_separator_survives_the_disk(trace, tmp_path, mark):
    changed = copy.deepcopy(trace)
    changed.header["prompt_text"] = changed.rounds[0].draft_pieces[0] = f"a{mark}b"
    changed.save(tmp_path / "run.jsonl")
    assert Trace.load(tmp_path / "run.jsonl") == changed


def test_unknown_kinds_are_left_out_and_rescored_traces_come_back(records, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, [*records, {"kind": "later"}])))
    assert list(Trace.load(path).records()) == records


def test_what_is_printed_cannot_steer_the_terminal(trace, tmp_path, capsys):
    changed = rescore(trace, ToyVerifier(seed=4))
    changed.footer = copy.deepcopy(changed.footer)
    for key in ("model", "verifier", "drafter"):
        changed.header = {**changed.header, key: "\x1b[2J"}
    changed.footer["summary"]["finish_reason"] = "\x1b[2J"
    for record in changed.rounds:
        record.other["verifier"] = "\x1b[2J"
    changed.save(tmp_path / "run.jsonl")
    assert app.run(["replay", str(tmp_path / "run.jsonl")]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_foreign_trace_loads_no_model(trace, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(app, "load_model", lambda *arguments: pytest.fail("a model was loaded"))
    changed = copy.deepcopy(trace)
    changed.header["model"] = "someone/anything"
    changed.save(tmp_path / "run.jsonl")
    assert app.run(["replay", str(tmp_path / "run.jsonl"), "--verifier", "bf16"]) == 2
    assert "someone/anything" in capsys.readouterr().err


def test_a_failed_save_leaves_nothing(trace, tmp_path):
    with pytest.raises(StorageError, match="cannot be written"):
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


@pytest.mark.parametrize("key", ["model", "checksum"])
def test_a_verifier_of_other_weights_is_refused(trace, key):
    other = ToyVerifier()
    other.identity = {**other.identity, key: "another"}
    with pytest.raises(TraceError, match="another"):
        rescore(trace, other)


def test_ties_go_to_the_lowest_id_as_in_the_run():
    """All logits equal: the run takes token 0, and so does the verifier that judges it again."""
    level = ToyVerifier()
    level.table = level.table * 0
    for guess in (0, 7):
        trace = ql.generate(
            level, [1, 2], drafter=FixedDrafter(lambda ids, n, guess=guess: [guess] * n), max_new_tokens=9
        )
        again = rescore(trace, level)
        assert set(trace.token_ids) == {0}
        assert {row[0][0] for record in again.rounds for row in record.other["top"]} == {0}
        assert {kept for record in again.rounds for kept in record.other["decision"]} == {guess == 0}
        for record in again.rounds:
            assert not any(record.other["flip"][: record.accepted + 1])
