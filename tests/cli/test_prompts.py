"""Prompts however they come, and where an answer and what is told of it go."""

import io
import json
import os
import subprocess
import sys

import pytest
from tiny_models import write_chat_model

from quasar_lab.cli import app

BOM = "\ufeff"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A tiny model that reads and writes bytes, in a folder whose name is not ASCII."""
    folder = tmp_path_factory.mktemp("models") / "modèle"
    write_chat_model(folder)
    return folder


def generate(capsys, chat, *arguments, stdin=None, monkeypatch=None):
    """(exit status, stdout, stderr)"""
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    capsys.readouterr()
    base = ["generate", "--model", chat, "--verifier", "bf16", "--max-new-tokens", 6]
    status = app.run([str(word) for word in (*base, *arguments)])
    return status, *capsys.readouterr()


def ids(capsys, chat, *arguments, **options):
    """What the prompt's tokens are, as a trace holds them."""
    trace = chat.parent / "run.jsonl"
    status, _, err = generate(capsys, chat, "--trace", trace, "--json", *arguments, **options)
    assert status == 0, err
    return json.loads(trace.read_text().splitlines()[0])["prompt_ids"]


@pytest.mark.parametrize("raw", [[], ["--raw"]], ids=str)
def test_a_prompt_is_the_same_however_it_comes(capsys, chat, tmp_path, monkeypatch, raw):
    wanted = ids(capsys, chat, "--prompt", "hi é", *raw)
    files = {"plain": "hi é", "newline": "hi é\n", "bom": BOM + "hi é", "windows": BOM + "hi é\r\n"}
    for name, text in files.items():
        path = tmp_path / name
        path.write_bytes(text.encode())
        assert ids(capsys, chat, "--prompt-file", path, *raw) == wanted, name
        given = {"stdin": text.encode(), "monkeypatch": monkeypatch}
        assert ids(capsys, chat, "--prompt", "-", *raw, **given) == wanted, f"{name} on stdin"
        assert ids(capsys, chat, "--prompt-file", "-", *raw, **given) == wanted, f"{name} on stdin"
    assert ids(capsys, chat, "--prompt", BOM + "hi é", *raw) == wanted
    (tmp_path / "two").write_text("hi é\n\n")
    assert ids(capsys, chat, "--prompt-file", tmp_path / "two", *raw) != wanted  # a second newline was meant


def test_messages_with_a_bom(capsys, chat, tmp_path, monkeypatch):
    text = BOM + json.dumps([{"role": "user", "content": "hi"}])
    (tmp_path / "m.json").write_text(text)
    wanted = ids(capsys, chat, "--prompt", "hi")
    assert ids(capsys, chat, "--messages", tmp_path / "m.json") == wanted
    assert ids(capsys, chat, "--messages", "-", stdin=text.encode(), monkeypatch=monkeypatch) == wanted


def test_a_closed_stdin_is_one_line(capsys, chat, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    status, out, err = generate(capsys, chat, "--prompt", "-")
    assert (status, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("stdin", [b"", b"\n", b"  \n", b"\xff\xfe"])
def test_a_pipe_that_holds_no_prompt(capsys, chat, monkeypatch, stdin):
    status, out, err = generate(capsys, chat, "--prompt", "-", stdin=stdin, monkeypatch=monkeypatch)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_the_answer_alone_is_on_stdout(capsys, chat):
    _, told, _ = generate(capsys, chat, "--prompt", "hi", "--json")
    status, out, err = generate(capsys, chat, "--prompt", "hi")
    assert status == 0
    assert out == json.loads(told)["text"] + "\n"
    assert "tokens per second" in err


ALIKE = [pytest.param(encoding, marks=pytest.mark.slow) for encoding in ("ascii", "cp1252", "utf-8")]


@pytest.mark.parametrize("encoding", ["latin-1", *ALIKE])
def test_json_is_json_on_every_stdout(chat, encoding):
    command = [sys.executable, "-m", "quasar_lab", "generate", "--model", str(chat), "--prompt", "hi é", "--json"]
    more = ["--verifier", "bf16", "--max-new-tokens", "6"]
    done = subprocess.run(
        command + more, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": encoding}
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout.decode(encoding))["model"] == "modèle"


def test_template_arguments(capsys, tmp_path):
    template = "{{ messages[0].content }}{{ enable_thinking }}{{ n }}{{ s }}"
    write_chat_model(tmp_path / "thinking", template=template)
    given = ["--template-arg", "enable_thinking=false", "--template-arg", "n=3", "--template-arg", "s=a=b c"]
    found = ids(capsys, tmp_path / "thinking", "--prompt", "hi", *given)
    assert bytes(found) == b"hiFalse3a=b c"


@pytest.mark.parametrize("bad", ["enable_thinking", "=3", "a b=3", "messages=3"])
def test_template_arguments_that_are_none(capsys, chat, bad):
    status, out, err = generate(capsys, chat, "--prompt", "hi", "--template-arg", bad)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "accepted" in err


def test_a_model_without_a_template_says_so_once(capsys, tmp_path):
    write_chat_model(tmp_path / "bare", template=None)
    _, _, err = generate(capsys, tmp_path / "bare", "--prompt", "hi")
    assert err.count("no chat template") <= 1  # once in a process
    status, _, err = generate(capsys, tmp_path / "bare", "--prompt", "hi", "--template-arg", "a=1")
    assert (status, "no chat template" in err) == (2, True)


def test_options_that_are_not_given_are_the_models(capsys, tmp_path):
    folder = tmp_path / "own"
    write_chat_model(folder)
    settings = {"repetition_penalty": 1.4, "do_sample": True, "temperature": 0.7, "typical_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    trace = tmp_path / "run.jsonl"

    def sampling(*arguments):
        status, _, err = generate(capsys, folder, "--prompt", "hi", "--trace", trace, "--json", *arguments)
        assert status == 0, err
        return json.loads(trace.read_text().splitlines()[0])["sampling"], err

    own, err = sampling()
    assert (own["temperature"], own["repetition_penalty"]) == (0.7, 1.4)
    assert "temperature 0.7" in err
    assert "typical_p" in err
    chosen, _ = sampling("--temperature", "0", "--repetition-penalty", "1")
    assert (chosen["temperature"], "repetition_penalty" in chosen) == (0, False)
