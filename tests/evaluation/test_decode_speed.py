"""The benchmark of whole answers: a killed run goes on and gives the same table, and its result is an object."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from timed_answers import CURVES, timed

from quasar_lab.cli import app
from quasar_lab.evaluation import decode_speed
from quasar_lab.evaluation.decode_speed import DecodeResult, Settings, run
from quasar_lab.evaluation.decode_state import StateFile
from quasar_lab.evaluation.origin import Origin
from quasar_lab.evaluation.questions import Question, read_questions, select
from quasar_lab.evaluation.speedup_table import SpeedupRow
from quasar_lab.evaluation.timed_answer import Arm
from quasar_lab.support.errors import InputError


@pytest.fixture
def counted(monkeypatch):
    """Replaces the measuring by known answers; `calls` says how often, `stop_after` interrupts."""
    calls, stop = [], {"after": 10**9}

    def answered(verifier, drafter, question, settings):
        if len(answered_by(calls)) >= stop["after"]:
            raise KeyboardInterrupt
        calls.append((verifier.name, drafter, question.id))
        return timed(verifier.name, drafter, question.id, question.category, step=0.001 * (1 + len(question.id)))

    monkeypatch.setattr(decode_speed, "answer_question", answered)
    monkeypatch.setattr(decode_speed, "step_timer", lambda *_: Steps(calls))
    monkeypatch.setattr(decode_speed, "generate", lambda *_, **__: None)
    return calls, stop


class Steps:
    """A timer whose passes get slower by a millisecond with every sample."""

    def __init__(self, calls):
        self.calls, self.samples = calls, 0

    def sample(self):
        self.calls.append("steps")
        self.samples += 1
        return {name: {int(width): ms + self.samples for width, ms in curve.items()} for name, curve in CURVES.items()}


def answered_by(calls):
    return [call for call in calls if call != "steps"]


class Words:
    """A tokenizer: one id a word."""

    has_chat_template = False

    def encode(self, text):
        return [1] * len(text.split())


class Named:
    backend = device = "cpu"
    ops = SimpleNamespace(get_threads=lambda: 2)
    tokenizer, context, vocab = Words(), 20, 5
    auditor = None

    def __init__(self, name):
        self.name = name
        self.identity = {"model": "m"}
        self.passes = (self,)


QUESTIONS = [Question(str(10**n), "ab"[n % 2], ("x",)) for n in range(5)]


def test_a_cut_run_goes_on_and_gives_the_same_table(counted, tmp_path, capsys):
    calls, stop = counted
    arms = [Named("bf16"), Named("w8a8")], ["none", "ngram"], QUESTIONS, Settings()
    whole = run(*arms, state=tmp_path / "a.jsonl")
    assert whole.complete
    assert not (tmp_path / "a.jsonl").exists()
    assert sorted(answered_by(calls)) == sorted(
        itertools.product(["bf16", "w8a8"], ["none", "ngram"], [q.id for q in QUESTIONS])
    )

    calls.clear()
    stop["after"] = 7
    part = run(*arms, state=tmp_path / "b.jsonl")
    assert not part.complete
    assert "Interrupted after 7 of 20" in capsys.readouterr().err
    assert sum(row.prompts for row in part.runs if row.category != "mean") == 7
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"verifier": "bf1')  # the line that a kill cut off
    stop["after"] = 10**9
    again = run(*arms, state=tmp_path / "b.jsonl")
    assert len(answered_by(calls)) == 20

    def table(found):
        return sorted((replace(row, predicted_speedup=None) for row in found.runs), key=str)

    assert table(again) == table(whole)


def test_steps_are_timed_between_the_questions(counted, tmp_path):
    """As often before each question as after the last, so that a machine that slows down slows the prediction too."""
    calls, stop = counted
    arms = [Named("bf16"), Named("w8a8")], ["none", "ngram"], QUESTIONS, Settings()
    found = run(*arms, state=tmp_path / "a.jsonl")
    gap, turn = ["steps"] * 3, [False] * 4
    assert [call if call == "steps" else False for call in calls] == [*(gap + turn) * 5, *gap]
    assert found.step_ms["bf16"] == {"1": 10 + 9.5, "5": 12 + 9.5}, "not the median of 18 samples"

    calls.clear()
    stop["after"] = 7
    run(*arms, state=tmp_path / "b.jsonl")
    assert calls.count("steps") == 6
    stop["after"] = 10**9
    again = run(*arms, state=tmp_path / "b.jsonl")
    assert calls.count("steps") == 6 + 3 * 5
    assert again.complete


def test_the_order_of_the_arms_rotates_from_question_to_question(counted, tmp_path):
    run([Named("bf16"), Named("w8a8")], ["none", "ngram"], QUESTIONS, Settings(), tmp_path / "s.jsonl")
    arms = [("bf16", "none"), ("bf16", "ngram"), ("w8a8", "none"), ("w8a8", "ngram")]
    order = [call[:2] for call in answered_by(counted[0])]
    assert order == [arms[(place + turn) % 4] for place in range(5) for turn in range(4)]


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([QUESTIONS[0], QUESTIONS[0]], "twice"),
        (
            [QUESTIONS[0], Question("7", "long", ("word " * 21,))],
            "question 7 of category long: the prompt has 21 tokens",
        ),
    ],
)
def test_unusable_questions_are_refused_before_anything_is_timed(counted, questions, message):
    with pytest.raises(InputError, match=message):
        run([Named("bf16")], ["none"], questions, Settings())
    assert counted[0] == []


def test_the_same_id_in_two_categories_is_two_questions(counted, tmp_path):
    questions = [Question("1", "a", ("x",)), Question("1", "b", ("y",))]
    found = run([Named("bf16")], ["none", "ngram"], questions, Settings(), tmp_path / "s.jsonl")
    assert len(answered_by(counted[0])) == 4
    assert {(row.drafter, row.category) for row in found.runs} >= {("ngram", "a"), ("ngram", "b")}


def test_other_threads_are_another_run(monkeypatch):
    files = set()
    for threads in (1, 2):
        monkeypatch.setattr(decode_speed, "threads", lambda _, threads=threads: threads)
        files.add(decode_speed._state_path([Named("bf16")], ["none"], QUESTIONS, Settings()))
    assert len(files) == 2


def row_of(arm, category, speedup):
    interval = {"speedup_low": speedup, "speedup_high": speedup, "predicted_speedup": 1.0}
    return SpeedupRow(*arm, category, 1, 9, 9, 0, 1.0, 90.0, 11.1, speedup=speedup, **interval)


@pytest.fixture
def known():
    """A result with rows in no order."""
    speedups = {("ngram", "mean"): 1.5, ("ngram", "maths"): 2.0, ("none", "maths"): 1.0, ("ngram", "code"): 0.4}
    return DecodeResult(
        runs=[row_of(("bf16", drafter), category, speedup) for (drafter, category), speedup in speedups.items()],
        baseline=Arm("bf16", "none"),
        complete=True,
        settings={"gamma": 4, "max_new_tokens": 128, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0},
        step_ms=CURVES,
        origin=Origin(model="m", device="cpu", backend="cpu", threads=2),
    )


def test_rows_of_a_result_are_found_by_name(known):
    assert known.row("bf16", "ngram").speedup == 1.5
    assert known.row("bf16", category="maths").speedup == 1.0
    with pytest.raises(InputError, match="no row w8a8/none/mean; accepted: bf16/ngram/mean, "):
        known.row("w8a8")
    assert known.prompts == 1
    assert known.best_speedup("maths") == 2.0
    assert known.best_speedup("poems") == 0.0


def test_the_row_furthest_from_its_prediction_is_so_by_factor(known):
    assert [row.category for row in known.predicted()[Arm("bf16", "ngram")]] == ["code", "maths", "mean"]
    assert list(known.predicted()) == [Arm("bf16", "ngram")], "the baseline is not predicted"
    assert known.furthest_from_prediction().category == "code", "0.4 is further from 1 than 2 is"


def test_a_result_and_its_document_are_the_same(known):
    document = json.loads(json.dumps(known.to_json()))
    assert DecodeResult.of(document) == known
    assert DecodeResult.of(known) is known
    assert "command" not in document
    assert document["settings"] == {
        "gamma": 4,
        "max_new_tokens": 128,
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "seed": 0,
    }


def test_a_state_file_gives_back_what_was_put_in(tmp_path):
    state, again = StateFile(tmp_path / "s.jsonl"), StateFile(tmp_path / "s.jsonl")
    answer = replace(timed("w8a8", "ngram"), audit_widths={7: 2}, audits_by="bf16")
    state.add_answer(answer)
    state.add_sample({"bf16": {1: 10.0}})
    again.read()
    assert again.answers == [answer]
    assert again.samples == [{"bf16": {"1": 10.0}}]
    state.remove()
    state.remove()
    assert not state.path.exists()


BAD_LINES = {
    "{": "not JSON",
    "[]": "no object",
    '{"question_id": 1, "category": "a"}': "turns",
    '{"question_id": 1, "category": "a", "turns": []}': "turns",
    '{"question_id": 1, "category": "a", "turns": [" "]}': "turns",
    '{"question_id": 1, "turns": ["x"]}': "category",
    '{"category": "a", "turns": ["x"]}': "question_id",
    '{"question_id": 1, "category": "a", "turns": ["x"], "reference": "y"}': "reference",
}
GOOD = '{"question_id": 1, "category": "a", "turns": ["x"]}'


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named_before_any_model_loads(line, tmp_path, capsys, monkeypatch):
    path = tmp_path / "q.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n")
    with pytest.raises(InputError, match=f"line 3 of .*{BAD_LINES[line]}"):
        read_questions(path)
    monkeypatch.setattr("quasar_lab.cli.bench.load_model", lambda *_: pytest.fail("a model was loaded"))
    assert app.run(["bench", "decode", "--prompts", str(path)]) == 2
    assert "line 3" in capsys.readouterr().err


def test_select_takes_some_of_each_category():
    assert [q.id for q in select(QUESTIONS, 1)] == ["1", "10"]
    assert select(QUESTIONS, None) == QUESTIONS


@pytest.mark.slow
def test_the_real_thing(capsys, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question_id": 1, "category": "a", "turns": ["Say hi.", "Say it again."]}\n')
    status = app.run(["bench", "decode", "--prompts", str(path), "--max-new-tokens", "8", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == 0
    keys = "verifier drafter category prompts new_tokens rounds mean_acceptance_length tokens_per_second ms_per_round"
    keys += " speedup speedup_low speedup_high predicted_speedup step_factor acceptance_factor other_factor"
    assert all(set(keys.split()) <= set(row) for row in found["runs"])
    assert len(found["runs"]) == 4
    assert all(row["identical_to_plain"] == 1 for row in found["runs"])


@pytest.mark.slow
def test_the_real_thing_audited(capsys, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question_id": 1, "category": "a", "turns": ["Count from one to thirty in words."]}\n')
    options = ["--prompts", str(path), "--max-new-tokens", "48", "--verifiers", "bf16,w8a8+bf16"]
    assert app.run(["bench", "decode", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(row["verifier"], row["drafter"]): row for row in found["runs"]}
    assert set(found["step_ms"]) == {"bf16", "w8a8"}
    assert {"1", "5", "16", "48"} <= set(found["step_ms"]["bf16"])
    for drafter in ("none", "ngram"):
        row = rows["w8a8+bf16", drafter]
        assert row["identical_to_plain"] == 1
        assert row["audits"] > 0
        assert 0 <= row["flip_rate"] < 0.5
        assert row["predicted_speedup"] > 0
    assert app.run(["bench", "decode", *options]) == 0
    shown = capsys.readouterr().out
    assert shown.count("flip rate") == 2  # in the tables of the audited arms alone
    assert "flip rate" not in shown.partition("w8a8+bf16")[0]
