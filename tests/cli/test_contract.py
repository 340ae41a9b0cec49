"""The keys of every JSON document and of every trace record, as other programs read them: recorded once, never less.

`contract.json` holds the paths of the keys. A new key is added there with the change that brings it; a key that goes
away breaks somebody's script.
"""

import json
from pathlib import Path

import pytest
from key_paths import key_paths

import quasar_lab as ql
from quasar_lab import cli

KEYS = json.loads(Path(__file__).with_name("contract.json").read_text(encoding="utf-8"))
ASK = ["generate", "--prompt", "Why is the sky blue?", "--max-new-tokens", "24"]
SHORT = ["--limit", "1", "--max-new-tokens", "6"]
COMMANDS = {
    "doctor": ["doctor"],
    "models": ["models"],
    "prepare": ["prepare"],
    "generate": ASK,
    "generate-audited": [*ASK, "--verifier", "w8a8+bf16"],
    "generate-ref": [*ASK[:3], "--verifier", "bf16", "--backend", "reference", "--max-new-tokens", "4"],
    "fidelity": ["fidelity", "--tokens", "500", "--window", "128", "--answer-tokens", "8", "--text"],
    "step": ["bench", "step", "--samples", "1", "--widths", "1,3"],
    "kernels": ["bench", "kernels", "--samples", "1", "--widths", "1"],
    "decode": ["bench", "decode", *SHORT, "--verifiers", "bf16,w8a8,w8a8+bf16"],
}


def test_every_document_of_the_record_is_asked_for():
    assert set(COMMANDS) | {name for name in KEYS if name.startswith("trace ")} == set(KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_document_has_the_recorded_keys(name, capsys, tmp_path):
    command = COMMANDS[name]
    if name == "fidelity":
        text = tmp_path / "text.txt"
        text.write_text("\n\n".join(question.turns[0] for question in ql.prompts.ours()), encoding="utf-8")
        command = [*command, str(text)]
    assert cli.run([*command, "--json"]) == 0
    found = key_paths(json.loads(capsys.readouterr().out))
    # Where no token flips, an answer has no first difference to describe.
    optional = {path for path in KEYS[name] if ".first." in path or "flip_margins[]" in path}
    assert set(KEYS[name]) - optional <= set(found) <= set(KEYS[name])


@pytest.mark.parametrize("verifier", ["w8a8", "w8a8+bf16"])
def test_a_trace_has_the_recorded_keys(verifier, embedded, w8a8):
    writer = ql.audited(w8a8, embedded) if "+" in verifier else w8a8
    found = {}
    for record in ql.generate(
        writer, "Name three colours, then name three colours again.", max_new_tokens=40
    ).records():
        found.setdefault(record["kind"], set()).update(key_paths(record))
    wanted = {name.split()[2]: set(keys) for name, keys in KEYS.items() if name.startswith(f"trace {verifier} ")}
    assert found == wanted
