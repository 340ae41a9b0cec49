"""The project's own texts: calibration documents and measuring prompts."""

import doctest
import json
import re
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "data"
CALIBRATION = DATA / "calibration" / "calibration.jsonl"
KINDS = {"code", "dialogue", "maths", "prose", "language"}
CATEGORIES = ["math", "code", "chat", "summarization", "translation", "qa"]


def read_lines(path):
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return [json.loads(line) for line in lines]


def read_prompts(category):
    return read_lines(DATA / "prompts" / f"{category}.jsonl")


def calibration_texts():
    for row in read_lines(CALIBRATION):
        if row["kind"] == "dialogue":
            yield from (message["content"] for message in row["messages"])
        else:
            yield row["text"]


def prompt_texts():
    for category in CATEGORIES:
        for row in read_prompts(category):
            yield from row["turns"]
            yield from row.get("reference", [])


def eight_grams(texts):
    found = set()
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        found.update(tuple(words[i : i + 8]) for i in range(len(words) - 7))
    return found


def test_calibration_rows():
    rows = read_lines(CALIBRATION)
    assert 45 <= len(rows) <= 60
    for row in rows:
        assert row["kind"] in KINDS
        if row["kind"] == "dialogue":
            assert set(row) == {"kind", "messages"}
            assert row["messages"]
            assert len(row["messages"]) % 2 == 0
            for i, message in enumerate(row["messages"]):
                assert set(message) == {"role", "content"}
                assert message["role"] == ("user", "assistant")[i % 2]
                assert isinstance(message["content"], str)
                assert message["content"].strip()
        else:
            assert set(row) == {"kind", "text"}
            assert isinstance(row["text"], str)
            assert row["text"].strip()
    kinds = [row["kind"] for row in rows]
    assert set(kinds) == KINDS
    assert kinds.count("dialogue") >= 16


def test_calibration_texts_differ():
    texts = [json.dumps(row, sort_keys=True) for row in read_lines(CALIBRATION)]
    assert len(set(texts)) == len(texts)


def test_calibration_prefix_is_a_mixture():
    assert len({row["kind"] for row in read_lines(CALIBRATION)[:12]}) >= 4


def test_prompt_files():
    assert {path.name for path in (DATA / "prompts").iterdir()} == {f"{category}.jsonl" for category in CATEGORIES}


@pytest.mark.parametrize("category", CATEGORIES)
def test_prompt_rows(category):
    rows = read_prompts(category)
    assert len(rows) >= 16
    keys = {"question_id", "category", "turns"} | (set() if category == "chat" else {"reference"})
    for row in rows:
        assert set(row) == keys
        assert type(row["question_id"]) is int
        assert row["category"] == category
        assert len(row["turns"]) in ((1, 2) if category == "chat" else (1,))
        assert len(row.get("reference", row["turns"])) == len(row["turns"])
        assert all(isinstance(text, str) and text.strip() for text in row["turns"] + row.get("reference", []))
    if category == "chat":
        assert any(len(row["turns"]) == 2 for row in rows)


def test_question_ids_are_unique():
    ids = [row["question_id"] for category in CATEGORIES for row in read_prompts(category)]
    assert len(set(ids)) == len(ids)


def test_prompts_differ():
    first_turns = [row["turns"][0] for category in CATEGORIES for row in read_prompts(category)]
    assert len(set(first_turns)) == len(first_turns)


def test_no_shared_eight_gram():
    calibration = eight_grams(calibration_texts())
    prompts = eight_grams(prompt_texts())
    assert calibration
    assert prompts
    assert not calibration & prompts


def test_math_references_end_in_a_number():
    for row in read_prompts("math"):
        assert re.search(r"\n#### \d+\Z", row["reference"][0]), row["question_id"]


def test_math_references_compute_what_they_say():
    term = r"\(?\d+(?: [-+*/] \(?\d+\)?)+"
    for row in read_prompts("math"):
        found = re.findall(rf"({term}) = (\d+)(?! with)", row["reference"][0])
        assert found, row["question_id"]
        for expression, value in found:
            assert eval(expression) == int(value), (row["question_id"], expression)


def test_code_references_pass_their_own_examples():
    for row in read_prompts("code"):
        reference = row["reference"][0]
        start = row["turns"][0].split("```python\n")[1].removesuffix("\n```")
        assert reference.startswith(start)
        names = {}
        exec(reference, names)
        function = names[re.match(r"def (\w+)", reference)[1]]
        (test,) = doctest.DocTestFinder().find(function, function.__name__, module=False, globs=names)
        assert test.examples
        assert doctest.DocTestRunner(verbose=False).run(test).failed == 0, row["question_id"]


def test_qa_references_are_phrases_of_the_passage():
    for row in read_prompts("qa"):
        assert row["reference"][0].lower() in row["turns"][0].lower()
