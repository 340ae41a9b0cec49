"""Audits in a trace: in order, checked when read, and known to everything that shows or rescores a trace."""

import copy
import json

import pytest
from toys import Letters, ToyVerifier, toy_pair

import quasar_lab as ql
from quasar_lab.cli import app
from quasar_lab.evaluation.rescore import rescore
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.errors import TraceError


@pytest.fixture(scope="module")
def trace():
    run = ql.generate(toy_pair(0.8, 6), [1, 2, 1, 2], gamma=3, temperature=1.0, max_new_tokens=60)
    assert {record.accepted == record.length for record in run.audits} == {True, False}
    return run


def test_a_trace_survives_the_disk_in_order(trace, tmp_path):
    trace.save(tmp_path / "run.jsonl")
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert kinds[:2] == ["header", "prefill"]
    assert kinds[2:-1] == [record.kind for record in trace.steps()]
    assert kinds[2:-1].index("audit") > 0
    loaded = Trace.load(tmp_path / "run.jsonl")
    assert loaded == trace
    assert loaded.token_ids == trace.summary()["token_ids"]
    assert loaded.audit_states() == trace.audit_states()
    contract = "kind index position length accepted emitted_ids emitted_pieces ms"
    assert set(contract.split()) <= set(json.loads(json.dumps(vars(trace.audits[0]))))


DROP = object()
HOSTILE = {
    "after": (0, -1, 10**6),
    "position": ("1", DROP),
    "length": (0, 2, 10**6),
    "accepted": (-1, 10**6),
    "trigger": ("boredom", DROP),
    "emitted_ids": ([], [11], [10] * 40),
    "emitted_pieces": ([], DROP),
    "emitted_states": (["foo"],),
    "p": ([], [float("nan")]),
    "top": ([], [[[1, "a", 0.5]]]),
    "ms": (5, {}),
    "unheard_of": (1,),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in HOSTILE.items() for value in values])
def test_every_key_of_an_audit_has_a_form(trace, tmp_path, key, value):
    records = copy.deepcopy(list(trace.records()))
    place = next(place for place, record in enumerate(records) if record.get("accepted"))
    records[place].pop(key, None)
    if value is not DROP:
        records[place][key] = value
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    with pytest.raises(TraceError, match=f"line {place + 1} of .* is not a trace record: "):
        Trace.load(path)


def test_an_audit_without_an_auditor_is_refused(trace, tmp_path):
    records = copy.deepcopy(list(trace.records()))
    del records[0]["auditor"]
    (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, records)))
    with pytest.raises(TraceError, match="no auditor"):
        Trace.load(tmp_path / "run.jsonl")


def test_states_as_the_run_goes_on():
    run = ql.stream(toy_pair(1.0, 6), [1, 2], drafter="none", max_new_tokens=40)
    for record in run:
        flat = [state for row in run.trace.audit_states() for state in row]
        waiting = run._audits.auditor.pending
        if record.kind == "audit":
            assert waiting == []
            assert flat[len(flat) - record.length :] == ["plain"] * record.accepted + ["retracted"] * (
                record.length - record.accepted
            )
        assert flat.count("provisional") == len(waiting)
        written = run._run.text.ids
        assert run.trace.token_ids == written[: len(written) - len(waiting)]
        assert run.trace.text == "".join(map(Letters().piece, run.trace.token_ids))
    plain = ql.generate(ToyVerifier(), [1, 2], max_new_tokens=9)
    assert plain.audit_states() == [record.emitted_states for record in plain.rounds]


def test_the_same_verifier_never_flips_an_audited_trace(trace):
    """Rescoring stands on the tokens that audits left: with the verifiers that ran, it repeats what they said."""
    pair = toy_pair(0.8, 6)
    again = rescore(trace, pair.fast)
    assert [record.other["top"] for record in again.rounds] == [record.top for record in trace.rounds]
    assert again.audits == trace.audits
    assert any(any(record.other["flip"]) for record in rescore(trace, pair.exact).rounds)
    assert rescore(trace, pair).rounds[0].other["top"] == rescore(trace, pair.exact).rounds[0].other["top"]


def test_shown_as_text_and_as_a_strip(trace, tmp_path, capsys):
    trace.save(tmp_path / "run.jsonl")
    assert app.run(["replay", str(tmp_path / "run.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "⟲ retracted" in out.splitlines()[1]
    audits = [line for line in out.splitlines() if "audit" in line and "kept" in line]
    assert len(audits) == len(trace.audits)
    assert app.run(["replay", str(tmp_path / "run.jsonl"), "--html", str(tmp_path / "run.html")]) == 0


def test_the_live_strip_is_told_of_audits():
    from quasar_lab.widgets import TokenStrip

    strip = TokenStrip()
    strip.run(ql.stream(toy_pair(0.8, 6), [1, 2], max_new_tokens=30))
    strip.wait()
    assert strip.status == ""
    kinds = [record["kind"] for record in strip.records]
    assert kinds == [record["kind"] for record in strip.trace.records()]
    assert "audit" in kinds
