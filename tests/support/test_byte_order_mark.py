"""A byte order mark, which some editors put before a text, is never part of what is read."""

from types import SimpleNamespace

import pytest
from tiny_models import write_chat_model

import quasar_lab as ql
from quasar_lab.evaluation.fidelity import read_tokens
from quasar_lab.evaluation.questions import read_questions
from quasar_lab.quantization import calibration
from quasar_lab.speculative.trace import Trace

BYTES = SimpleNamespace(
    context=512,
    tokenizer=SimpleNamespace(
        encode=lambda text, special=True: list(text.encode()), has_chat_template=False, chat=lambda messages: [1]
    ),
)
QUESTION = '{"question_id": 1, "category": "x", "turns": ["hi"]}'


def marked(path, text):
    """The same text twice, in files of the same name without and with the mark."""
    for folder, mark in (("without", ""), ("with", "\ufeff")):
        (path / folder).mkdir(exist_ok=True)
        (path / folder / "file.jsonl").write_text(mark + text, encoding="utf-8")
    return path / "without" / "file.jsonl", path / "with" / "file.jsonl"


READERS = {
    "questions": (QUESTION, read_questions),
    "calibration lines": ('{"text": "hi"}', lambda path: calibration.sequences(BYTES, path)),
    "calibration text": ("hi", lambda path: calibration.sequences(BYTES, path.rename(path.with_suffix(".txt")))),
    "calibration identity": ("hi", calibration.file_hash),
    "text to measure on": ("hi", lambda path: read_tokens(BYTES, path)),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_text_file(tmp_path, kind):
    text, read = READERS[kind]
    without, with_mark = (read(path) for path in marked(tmp_path, text))
    assert without == with_mark


def test_a_trace(tmp_path, tiny):
    ql.generate(tiny, [1, 2], max_new_tokens=3).save(tmp_path / "run.jsonl")
    path = tmp_path / "marked.jsonl"
    path.write_text("\ufeff" + (tmp_path / "run.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
    assert Trace.load(path).token_ids == Trace.load(tmp_path / "run.jsonl").token_ids


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_files_of_a_model(tmp_path, name):
    write_chat_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"repetition_penalty": 1.5}')
    text = (tmp_path / name).read_text(encoding="utf-8")
    plain = ql.generate(ql.load(tmp_path), "hi", max_new_tokens=4)
    (tmp_path / name).write_text("\ufeff" + text, encoding="utf-8")
    found = ql.generate(ql.load(tmp_path), "hi", max_new_tokens=4)
    assert found.token_ids == plain.token_ids
    assert found.prompt_ids == plain.prompt_ids
    assert found.sampling.repetition_penalty == 1.5
