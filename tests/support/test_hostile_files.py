"""Calibration and prompt files that others wrote: one error that names the line, no line cut in two."""

import json
from types import SimpleNamespace

import pytest

from quasar_lab.evaluation.questions import read_questions
from quasar_lab.quantization import calibration
from quasar_lab.support.errors import CalibrationError, InputError

MARKS = ["\u2028", "\u0085", "\x0c", "\r"]
NO_JSON = ["{", "[" * 100_000, "1" * 5000, '{"text": "\\ud800"}', '{"text": NaN}']
NO_DOCUMENT = ["5", '"abc"', "[]", '{"messages": 5}', '{"messages": [5]}', '{"messages": [{"role": "user"}]}']
NO_DOCUMENT += ['{"messages": "abc"}', '{"messages": [{"role": "user", "content": 5}]}', '{"text": 5}', "{}"]


def model(has_chat_template):
    """A tokenizer of bytes; its template refuses the role "nobody"."""

    def chat(messages):
        if any(message["role"] == "nobody" for message in messages):
            raise InputError("refused")
        return [1]

    tokenizer = SimpleNamespace(has_chat_template=has_chat_template, encode=lambda text: list(text.encode()), chat=chat)
    return SimpleNamespace(tokenizer=tokenizer, context=512)


@pytest.mark.parametrize("has_chat_template", [True, False])
@pytest.mark.parametrize("line", NO_JSON + NO_DOCUMENT)
def test_a_calibration_line_that_is_no_document(tmp_path, line, has_chat_template):
    path = tmp_path / "c.jsonl"
    path.write_text(f'{{"text": "a"}}\n{line}\n')
    with pytest.raises(CalibrationError, match=r"line 2"):
        calibration.sequences(model(has_chat_template), path)


def test_a_conversation_that_the_template_refuses(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"messages": [{"role": "nobody", "content": "a"}]}')
    with pytest.raises(CalibrationError, match=r"line 1 .*refused"):
        calibration.sequences(model(True), path)


@pytest.mark.parametrize("mark", MARKS)
def test_a_document_keeps_its_separators(tmp_path, mark):
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"text": f"a{mark}b"}, ensure_ascii=False), encoding="utf-8")
    assert calibration.sequences(model(False), path) == [list(f"a{mark}b".encode())]


@pytest.mark.parametrize("line", NO_JSON)
def test_a_question_that_is_no_json(tmp_path, line):
    path = tmp_path / "q.jsonl"
    path.write_text(f"\n{line}")
    with pytest.raises(InputError, match=r"line 2 .*not JSON"):
        read_questions(path)


@pytest.mark.parametrize("mark", MARKS)
def test_a_question_keeps_its_separators(tmp_path, mark):
    path = tmp_path / "q.jsonl"
    question = {"question_id": 1, "category": "x", "turns": [f"a{mark}b"]}
    path.write_text(json.dumps(question, ensure_ascii=False), encoding="utf-8")
    assert read_questions(path)[0].turns == (f"a{mark}b",)
