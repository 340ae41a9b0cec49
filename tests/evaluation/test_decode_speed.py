"""The 2×2 from known answers: what the columns mean, the edges, and a killed run that gives the same table."""

import itertools
import json

import pytest

from quasar_lab.cli import app
from quasar_lab.evaluation import decode_speed
from quasar_lab.evaluation.decode_speed import Answer, Settings, summarise
from quasar_lab.evaluation.questions import Question, read_questions, select
from quasar_lab.support.errors import InputError

CURVES = {"bf16": {"1": 10.0, "5": 12.0}, "w8a8": {"1": 5.0, "5": 6.0}}


def item(
    verifier="bf16", drafter="none", question="1", category="maths", tokens=30, rounds=30, step=0.010, other=0.001
):
    return Answer(
        verifier=verifier,
        drafter=drafter,
        question=question,
        category=category,
        tokens=tokens,
        rounds=rounds,
        drafted=0,
        prefill=9.0,
        verify=step * rounds,
        draft=0.0,
        sample=other * rounds,
        host=0.0,
        widths={1: rounds} if drafter == "none" else {5: rounds},
        ids=[[tokens]],
    )


def rows_of(answers):
    return {(r["verifier"], r["drafter"], r["category"]): r for r in summarise(answers, CURVES, ("bf16", "none"))}


def test_a_speedup_is_the_product_of_its_factors():
    rows = rows_of([item(), item("w8a8", "ngram", tokens=30, rounds=15, step=0.006, other=0.002)])
    row = rows["w8a8", "ngram", "maths"]
    assert row["speedup"] == pytest.approx((30 * 0.011) / (15 * 0.008))
    assert row["acceptance_factor"] == pytest.approx(2)
    assert row["step_factor"] == pytest.approx(10 / 6)
    product = row["step_factor"] * row["acceptance_factor"] * row["other_factor"]
    assert product == pytest.approx(row["speedup"])
    assert row["predicted_speedup"] == pytest.approx(30 * 0.011 / (15 * 0.006 + 15 * 0.002))
    assert row["mean_acceptance_length"] == 2
    assert row["tokens_per_second"] == pytest.approx(30 / (15 * 0.008))
    assert rows["bf16", "none", "maths"]["speedup"] == 1


def test_prefill_counts_for_nothing():
    slow = Answer(**{**item("w8a8").__dict__, "prefill": 1e6})
    assert rows_of([item(), slow])["w8a8", "none", "maths"]["speedup"] == pytest.approx(1)


def test_the_interval_comes_from_the_questions():
    fast = [item("w8a8", question=str(n), step=0.004 + 0.001 * (n % 4)) for n in range(12)]
    row = rows_of([*(item(question=str(n)) for n in range(12)), *fast])["w8a8", "none", "maths"]
    assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    same = [item("w8a8", question=str(n), step=0.005) for n in range(12)]
    row = rows_of([*(item(question=str(n)) for n in range(12)), *same])["w8a8", "none", "maths"]
    assert row["speedup_low"] == pytest.approx(row["speedup_high"])


def test_mean_is_over_categories():
    answers = [item(category=c, question=c) for c in "ab"]
    answers += [item("w8a8", category=c, question=c, step=s) for c, s in (("a", 0.0045), ("b", 0.010))]
    rows = rows_of(answers)
    assert rows["w8a8", "none", "mean"]["speedup"] == pytest.approx((2 + 1) / 2)


def test_edges_nothing_drafted_nothing_said_nothing_paired():
    rows = rows_of(
        [
            item(category="silent", tokens=0, rounds=0),
            item("w8a8", "ngram", category="silent", tokens=0, rounds=0),
            item("w8a8", "ngram", category="unpaired", question="7"),
        ]
    )
    for category in ("silent", "unpaired"):
        assert rows["w8a8", "ngram", category]["speedup"] is None
    assert rows["w8a8", "ngram", "silent"]["mean_acceptance_length"] is None
    json.dumps(list(rows.values()), allow_nan=False)


def test_identity_with_plain_is_counted():
    plain, other = item("w8a8", "none"), item("w8a8", "ngram")
    assert rows_of([item(), plain, other])["w8a8", "ngram", "maths"]["identical_to_plain"] == 1
    changed = Answer(**{**other.__dict__, "ids": [[1, 2]]})
    row = rows_of([item(), plain, changed])["w8a8", "ngram", "maths"]
    assert (row["identical_to_plain"], row["different_from_plain"]) == (0, ["1"])


def test_an_audited_arm_counts_its_audits():
    curves = {"bf16": {"1": 10.0, "5": 12.0, "9": 20.0}, "w8a8": {"1": 5.0, "5": 6.0}}
    audited = Answer(
        **{
            **item("w8a8+bf16", "ngram", rounds=15, step=0.006, other=0.002).__dict__,
            "audit": 0.040,
            "audit_widths": {5: 2, 7: 1},
            "audited": 16,
            "judged": 14,
            "flips": 2,
        }
    )
    found = summarise([item(), audited], curves, ("bf16", "none"))
    row = next(row for row in found if row["verifier"] == "w8a8+bf16")
    seconds = 15 * 0.008 + 0.040
    assert row["speedup"] == pytest.approx(30 * 0.011 / seconds)
    assert row["tokens_per_second"] == pytest.approx(30 / seconds)
    assert row["step_factor"] == pytest.approx(0.010 / ((15 * 0.006 + 0.040) / 15))
    assert row["step_factor"] * row["acceptance_factor"] * row["other_factor"] == pytest.approx(row["speedup"])
    passes = 15 * 0.006 + 2 * 0.012 + 0.016
    assert row["predicted_speedup"] == pytest.approx(30 * 0.011 / (passes + 15 * 0.002))
    assert (row["audits"], row["audit_length"], row["flip_rate"]) == (3, 16 / 3, 2 / 14)
    assert found[0]["audits"] is found[0]["audit_length"] is found[0]["flip_rate"] is None


def test_an_audited_answer_is_compared_with_the_auditors():
    own, audited = item("w8a8"), item("w8a8+bf16", "ngram")
    changed = Answer(**{**audited.__dict__, "ids": [[1]]})
    for answer, same in ((audited, 1), (changed, 0)):
        rows = rows_of([item(), Answer(**{**own.__dict__, "ids": [[1]]}), answer])
        assert rows["w8a8+bf16", "ngram", "maths"]["identical_to_plain"] == same


@pytest.fixture
def counted(monkeypatch):
    """Replaces the measuring by known answers; `calls` says how often, `stop_after` interrupts."""
    calls, stop = [], {"after": 10**9}

    def answered(verifier, drafter, question, settings):
        if len(answers(calls)) >= stop["after"]:
            raise KeyboardInterrupt
        calls.append((verifier.name, drafter, question.id))
        return item(verifier.name, drafter, question.id, question.category, step=0.001 * (1 + len(question.id)))

    monkeypatch.setattr(decode_speed, "answer", answered)
    monkeypatch.setattr(decode_speed, "_timer", lambda *_: Steps(calls))
    monkeypatch.setattr(decode_speed, "generate", lambda *_, **__: None)
    monkeypatch.setattr(decode_speed, "threads", lambda _: 2)
    return calls, stop


class Steps:
    """A timer whose passes get slower by a millisecond with every sample."""

    def __init__(self, calls):
        self.calls, self.samples = calls, 0

    def sample(self):
        self.calls.append("steps")
        self.samples += 1
        return {name: {int(width): ms + self.samples for width, ms in curve.items()} for name, curve in CURVES.items()}


def answers(calls):
    return [call for call in calls if call != "steps"]


class Words:
    """A tokenizer: one id a word."""

    has_chat_template = False

    def encode(self, text):
        return [1] * len(text.split())


class Named:
    backend = device = "cpu"
    ops = None
    tokenizer, context, vocab = Words(), 20, 5

    def __init__(self, name):
        self.name = name
        self.identity = {"model": "m"}


QUESTIONS = [Question(str(10**n), "ab"[n % 2], ("x",)) for n in range(5)]


def test_a_cut_run_goes_on_and_gives_the_same_table(counted, tmp_path, capsys):
    calls, stop = counted
    arms = [Named("bf16"), Named("w8a8")], ["none", "ngram"], QUESTIONS, Settings()
    whole = decode_speed.run(*arms, state=tmp_path / "a.jsonl")
    assert whole["complete"]
    assert not (tmp_path / "a.jsonl").exists()
    assert sorted(answers(calls)) == sorted(
        itertools.product(["bf16", "w8a8"], ["none", "ngram"], [q.id for q in QUESTIONS])
    )

    calls.clear()
    stop["after"] = 7
    part = decode_speed.run(*arms, state=tmp_path / "b.jsonl")
    assert not part["complete"]
    assert "Interrupted after 7 of 20" in capsys.readouterr().err
    assert sum(row["prompts"] for row in part["runs"] if row["category"] != "mean") == 7
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"verifier": "bf1')  # the line that a kill cut off
    stop["after"] = 10**9
    again = decode_speed.run(*arms, state=tmp_path / "b.jsonl")
    assert len(answers(calls)) == 20

    def table(found):
        rows = [{key: value for key, value in row.items() if key != "predicted_speedup"} for row in found["runs"]]
        return sorted(rows, key=str)

    assert table(again) == table(whole)


def test_steps_are_timed_between_the_questions(counted, tmp_path):
    """As often before each question as after the last, so that a machine that slows down slows the prediction too."""
    calls, stop = counted
    arms = [Named("bf16"), Named("w8a8")], ["none", "ngram"], QUESTIONS, Settings()
    found = decode_speed.run(*arms, state=tmp_path / "a.jsonl")
    gap, turn = ["steps"] * 3, [False] * 4
    assert [call if call == "steps" else False for call in calls] == [*(gap + turn) * 5, *gap]
    assert found["step_ms"]["bf16"] == {"1": 10 + 9.5, "5": 12 + 9.5}, "not the median of 18 samples"

    calls.clear()
    stop["after"] = 7
    decode_speed.run(*arms, state=tmp_path / "b.jsonl")
    assert calls.count("steps") == 6
    stop["after"] = 10**9
    again = decode_speed.run(*arms, state=tmp_path / "b.jsonl")
    assert calls.count("steps") == 6 + 3 * 5
    assert again["complete"]


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
        decode_speed.run([Named("bf16")], ["none"], questions, Settings())
    assert counted[0] == []


def test_the_same_id_in_two_categories_is_two_questions(counted, tmp_path):
    questions = [Question("1", "a", ("x",)), Question("1", "b", ("y",))]
    found = decode_speed.run([Named("bf16")], ["none", "ngram"], questions, Settings(), tmp_path / "s.jsonl")
    assert len(answers(counted[0])) == 4
    assert {(row["drafter"], row["category"]) for row in found["runs"]} >= {("ngram", "a"), ("ngram", "b")}


def test_other_threads_are_another_run(monkeypatch):
    files = set()
    for threads in (1, 2):
        monkeypatch.setattr(decode_speed, "threads", lambda _, threads=threads: threads)
        files.add(decode_speed._state_file([Named("bf16")], ["none"], QUESTIONS, Settings()))
    assert len(files) == 2


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
    assert "flips" in capsys.readouterr().out.splitlines()[0]
