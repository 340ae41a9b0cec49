"""The command line as scripts use it: keys, exit statuses, one line on stderr, nothing else on stdout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import quasar_kernels
from toys import ToyVerifier

from quasar_lab.cli import app, jupyter
from quasar_lab.cli.print_trace import print_rounds
from quasar_lab.speculative import verification
from quasar_lab.speculative.generation import generate
from quasar_lab.speculative.trace import Trace

SUMMARY_KEYS = {
    *("text", "token_ids", "prompt_tokens", "new_tokens", "finish_reason", "verifier", "drafter", "gamma", "rounds"),
    *("mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram", "survival", "seconds"),
    *("tokens_per_second", "device", "backend", "model", "versions"),
}


def call(capsys, *arguments):
    """(exit status, stdout, stderr)"""
    capsys.readouterr()
    status = app.run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_generate_json(capsys, tmp_path):
    trace = tmp_path / "run.jsonl"
    status, out, _ = call(
        capsys,
        "generate",
        "--prompt",
        "Say hi.",
        "--verifier",
        "bf16",
        "--max-new-tokens",
        8,
        "--trace",
        trace,
        "--json",
    )
    found = json.loads(out)
    assert status == 0
    assert set(found) >= SUMMARY_KEYS
    assert found["new_tokens"] == len(found["token_ids"]) <= 8
    assert Trace.load(trace).summary() == found
    status, out, _ = call(capsys, "replay", trace)
    assert status == 0
    assert len(out.splitlines()) == 3 + found["rounds"]


def test_generate_from_files(capsys, tmp_path):
    (tmp_path / "m.json").write_text(json.dumps([{"role": "user", "content": "Say hi."}]))
    (tmp_path / "p.txt").write_text("Say hi.")
    base = ["generate", "--verifier", "bf16", "--drafter", "none", "--max-new-tokens", 4, "--json"]
    ids = [
        json.loads(call(capsys, *base, *option)[1])["token_ids"]
        for option in (
            ["--prompt", "Say hi."],
            ["--messages", tmp_path / "m.json"],
            ["--prompt-file", tmp_path / "p.txt"],
        )
    ]
    assert ids[0] == ids[1] == ids[2]
    raw = json.loads(call(capsys, *base, "--prompt", "Say hi.", "--raw")[1])
    assert raw["prompt_tokens"] < 10


def test_doctor_and_models_json(capsys):
    status, out, _ = call(capsys, "doctor", "--json")
    assert status == 0
    found = json.loads(out)
    assert {"python", "torch", "triton", "device", "cpu_features", "backend", "threads", "cache_folder"} <= set(found)
    status, out, _ = call(capsys, "models", "--json")
    keys = "id family parameters license source fits"
    keys += " resident_bytes_bf16 resident_bytes_w8a8 step_bytes_bf16 step_bytes_w8a8"
    for row in json.loads(out):
        assert set(row) == set(keys.split())
        assert row["step_bytes_w8a8"] < 0.51 * row["step_bytes_bf16"]


def test_models_tells_the_bytes_of_the_embedded_one(capsys, embedded, w8a8):
    row = json.loads(call(capsys, "models", "--json")[1])[0]
    assert row["step_bytes_bf16"] == pytest.approx(embedded.weight_bytes, rel=0.001)
    assert row["step_bytes_w8a8"] == pytest.approx(w8a8.weight_bytes, rel=0.002)
    if embedded.ops.name == "cpu":  # which packs a tied head apart from the table
        assert row["resident_bytes_bf16"] == pytest.approx(embedded.resident_bytes, rel=0.001)
        assert row["resident_bytes_w8a8"] == pytest.approx(w8a8.resident_bytes, rel=0.002)


def test_files_that_cannot_be_read_are_told_in_words(capsys, tmp_path):
    (tmp_path / "no.txt").write_bytes(b"\xff\xfe\x00")
    readme = Path(__file__).parents[2] / "README.md"
    for arguments, said in (
        (["replay", tmp_path / "missing"], "no such file"),
        (["replay", tmp_path], "it is a folder"),
        (["replay", tmp_path / "no.txt"], "it is not UTF-8 text"),
        (["replay", readme], "it is not JSON; accepted: what generate --trace saves"),
        (["fidelity", "--text", tmp_path / "missing"], "missing cannot be read as text: no such file"),
    ):
        assert said in call(capsys, *arguments)[2]


def test_a_backend_of_a_later_version_is_called_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "quasar_kernels.triton", None)
    assert quasar_kernels.availability()["triton"] == "not in this version"


def test_jupyter_is_started_without_news(tmp_path, monkeypatch):
    from jupyterlab_server.config import get_page_config

    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/own")
    found = jupyter.environment(tmp_path)
    assert found["JUPYTER_CONFIG_PATH"] == f"{tmp_path}{os.pathsep}/own"
    assert found["JUPYTER_PREFER_ENV_PATH"] == "1"  # this environment's kernel, not another one of the same name
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", found["JUPYTER_CONFIG_PATH"])
    assert "@jupyterlab/apputils-extension:announcements" in get_page_config([])["disabledExtensions"]


def test_replay_tells_flips_only_where_something_was_decided(capsys):
    trace = generate(ToyVerifier(), [1, 2, 1, 2], max_new_tokens=12)
    rounds = [record for record in trace.rounds if record.draft_ids]
    assert rounds
    for record in trace.rounds:
        flip = [place > record.accepted for place in range(len(record.draft_ids))]
        record.other = {"verifier": "other", "flip": flip}
    print_rounds(trace)
    out = capsys.readouterr().out
    assert "⇄" not in out
    assert "retracted" not in out
    assert out.splitlines()[-1] == f"other decides otherwise in 0 of {len(trace.rounds)} rounds"
    rounds[0].other["flip"][0] = True
    print_rounds(trace)
    out = capsys.readouterr().out
    assert out.count("⇄ other decides otherwise at draft 1\n") == 1
    assert out.splitlines()[-1] == f"other decides otherwise in 1 of {len(trace.rounds)} rounds"


def test_bench_step_json(capsys):
    status, out, _ = call(
        capsys,
        "bench",
        "step",
        "--verifiers",
        "bf16,w8a8",
        "--widths",
        "1,3",
        "--samples",
        2,
        "--context",
        16,
        "--json",
    )
    found = json.loads(out)
    assert status == 0
    assert {"bandwidth_gb_s", "device", "backend", "threads", "model", "steps"} <= set(found)
    assert [(row["verifier"], row["width"]) for row in found["steps"]] == [
        ("bf16", 1),
        ("bf16", 3),
        ("w8a8", 1),
        ("w8a8", 3),
    ]
    keys = "verifier width ms_p20 ms_p50 ms_p80 samples bytes floor_ms fraction_of_floor"
    assert all(
        set(keys.split()) <= set(row) and row["ms_p20"] <= row["ms_p50"] <= row["ms_p80"] for row in found["steps"]
    )


@pytest.mark.slow
def test_fidelity_and_prepare_json(capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The river rose in the night and by morning it had reached the garden wall. " * 6)
    status, out, _ = call(
        capsys, "fidelity", "--verifier", "w8a8", "--text", text, "--window", 32, "--skip", 8, "--tokens", 64, "--json"
    )
    found = json.loads(out)
    assert status == 0
    keys = "tokens kl_mean kl_p99 top1_agreement flips perplexity_bf16 perplexity per_layer"
    assert set(keys.split()) <= set(found)
    assert found["tokens"] == 64
    status, out, _ = call(capsys, "prepare", "--recipe", "w8a8", "--json")
    assert status == 0
    errors = json.loads(out)["errors"]
    assert len(errors) == 121
    assert sum(row["error"] for row in errors) < sum(row["error_plain"] for row in errors)


IDS_FILE = str(Path(__file__).parent / "ids.json")

BAD = {
    "no prompt": ["generate"],
    "two prompts": ["generate", "--prompt", "a", "--prompt-file", "b"],
    "empty prompt": ["generate", "--prompt", "  "],
    "missing file": ["generate", "--prompt-file", "/nowhere.txt"],
    "unknown recipe": ["generate", "--prompt", "a", "--verifier", "w9"],
    "unknown drafter": ["generate", "--prompt", "a", "--drafter", "x"],
    "bad gamma": ["generate", "--prompt", "a", "--gamma", "x"],
    "gamma 0": ["generate", "--prompt", "a", "--gamma", "0", "--verifier", "bf16"],
    "bad number": ["generate", "--prompt", "a", "--max-new-tokens", "many"],
    "bad temperature": ["generate", "--prompt", "a", "--temperature", "-1"],
    "bad top-p": ["generate", "--prompt", "a", "--top-p", "0"],
    "unknown option": ["generate", "--promt", "a"],
    "unknown command": ["generat"],
    "unknown device": ["generate", "--prompt", "a", "--device", "tpu"],
    "unknown backend": ["generate", "--prompt", "a", "--backend", "magic"],
    "backend of another device": ["generate", "--prompt", "a", "--backend", "triton"],
    "threads huge": ["generate", "--prompt", "a", "--threads", "100000"],
    "seed huge": ["generate", "--prompt", "a", "--seed", str(2**64)],
    "tiny temperature": ["generate", "--prompt", "a", "--temperature", "1e-39"],
    "trace is a folder": ["generate", "--prompt", "a", "--verifier", "bf16", "--trace", "/tmp"],
    "messages that are ids": ["generate", "--messages", IDS_FILE],
    "same width twice": ["bench", "step", "--widths", "1,1"],
    "recipe with a colon": ["generate", "--prompt", "a", "--verifier", "w8a8:"],
    "drafter with a colon": ["generate", "--prompt", "a", "--drafter", "none:"],
    "digits of another script": ["generate", "--prompt", "a", "--drafter", "ngram:٣"],
    "report out is a file": ["report", "00_start_here", "--out", __file__],
    "prepare out is a file": ["prepare", "--out", __file__],
    "threads 0": ["generate", "--prompt", "a", "--threads", "0"],
    "unknown model": ["generate", "--prompt", "a", "--model", "/nowhere"],
    "no folder for the trace": ["generate", "--prompt", "a", "--verifier", "bf16", "--trace", "/nowhere/x.jsonl"],
    "stop ''": ["generate", "--prompt", "a", "--verifier", "bf16", "--stop", ""],
    "widths": ["bench", "step", "--widths", "1,x"],
    "width 0": ["bench", "step", "--widths", "0", "--verifiers", "bf16"],
    "context 0": ["bench", "step", "--context", "0", "--verifiers", "bf16"],
    "same verifier twice": ["bench", "step", "--verifiers", "bf16,bf16"],
    "no trace": ["replay", "/nowhere.jsonl"],
    "no text": ["fidelity", "--text", "/nowhere.txt"],
    "window 1": ["fidelity", "--text", __file__, "--window", "1"],
    "bad α": ["prepare", "--recipe", "w8a8-smoothquant:7"],
    "no calibration": ["prepare", "--recipe", "w8a8-smoothquant:0.41", "--calibration", "/nowhere.txt"],
    "port": ["lab", "--port", "0"],
    "notebook": ["report", "99_nothing"],
    "audited by itself": ["generate", "--prompt", "a", "--verifier", "bf16+bf16"],
    "audited by a recipe": ["generate", "--prompt", "a", "--verifier", "w8a8+w8a8"],
    "audited twice": ["generate", "--prompt", "a", "--verifier", "w8a8+bf16+bf16"],
    "unknown recipe audited": ["generate", "--prompt", "a", "--verifier", "w9+bf16"],
    "fidelity of an audited verifier": ["fidelity", "--text", __file__, "--verifier", "w8a8+bf16"],
    "a step of an audited verifier": ["bench", "step", "--verifiers", "bf16,w8a8+bf16"],
    "parameter": ["report", "00_start_here", "-p", "9x", "1"],
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD)
def test_bad_usage_is_one_line_and_exit_2(capsys, arguments):
    status, out, err = call(capsys, *arguments)
    assert status == 2, err
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("quasar-lab: ")


LATER = [
    ["export", "--recipe", "w8a8"],
    ["generate", "--prompt", "a", "--verifier", "pruned:0.5"],
    ["generate", "--prompt", "a", "--verifier", "w4a8"],
    ["generate", "--prompt", "a", "--drafter", "medusa"],
    ["generate", "--prompt", "a", "--gamma", "auto", "--verifier", "bf16"],
]


@pytest.mark.parametrize("arguments", LATER, ids=" ".join)
def test_later_names_say_so(capsys, arguments):
    status, out, err = call(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.strip().endswith("not in this version")


@pytest.mark.parametrize(
    "command", ["doctor", "models", "prepare", "generate", "fidelity", "replay", "report", "lab", "bench step"]
)
def test_help_has_an_example(capsys, command):
    status, out, _ = call(capsys, *command.split(), "--help")
    assert status == 0
    assert "Example: quasar-lab" in out
    assert "medusa" not in out


def test_an_internal_failure_is_exit_1(capsys, monkeypatch):
    monkeypatch.setattr("quasar_lab.evaluation.catalogue.rows", lambda: 1 / 0)
    status, out, err = call(capsys, "models")
    assert (status, out) == (1, "")
    assert "ZeroDivisionError" in err.splitlines()[-1]


def test_a_hostile_token_cannot_steer_the_terminal(capsys, tmp_path):
    import quasar_lab as ql

    class Hostile:
        has_chat_template = False

        def piece(self, token):
            return f"\x1b[2J\r\n{token}"

        def token_bytes(self, token):
            return self.piece(token).encode()

        def is_special(self, token):
            return False

        def decode(self, ids):
            return "\x1b[2J"

    verifier = ToyVerifier()
    verifier.tokenizer = Hostile()
    ql.generate(verifier, [1, 2], max_new_tokens=5).save(tmp_path / "run.jsonl")
    status, out, _ = call(capsys, "replay", tmp_path / "run.jsonl")
    assert status == 0
    assert "\x1b" not in out
    assert "\\x1b[2J" in out


def test_the_core_runs_without_the_lab():
    """Neither jupyter, plotly nor pandas may be imported by the core."""
    code = (
        "import sys\n"
        "lab = ('plotly', 'pandas', 'ipywidgets', 'anywidget', 'papermill', 'jupyterlab')\n"
        "sys.modules.update(dict.fromkeys(lab))\n"
        "import quasar_lab as ql, quasar_lab.evaluation.pass_time, quasar_lab.evaluation.fidelity\n"
        "import quasar_lab.cli.app, quasar_lab.evaluation.rescore\n"
        "print(ql.load('embedded').name)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True)
    assert out.stdout.strip() == "bf16"


def test_bench_kernels_json(capsys):
    status, out, _ = call(capsys, "bench", "kernels", "--widths", "1", "--samples", 1, "--json")
    found = json.loads(out)
    assert status == 0
    keys = {"op", "backend", "shape", "width", "us_p20", "us_p50", "us_p80", "gb_s", "fraction_of_stream"}
    assert all(set(row) == keys for row in found["kernels"])
    assert [row["shape"] for row in found["kernels"] if row["op"] == "linear_bf16"][:2] == [[960, 576], [576, 576]]
    assert [row["shape"] for row in found["kernels"] if row["op"].startswith("silu")] == [[1536], [1536, 12]]


@pytest.mark.parametrize("command", [["models"], ["--help"], ["models", "--json"]], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(command):
    quoted = " ".join([sys.executable, "-m", "quasar_lab", *command])
    out = subprocess.run(
        ["bash", "-c", f"{quoted} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=False
    )
    assert (out.returncode, out.stderr) == (0, "")


def test_a_full_disk_and_a_narrow_encoding():
    code = [sys.executable, "-m", "quasar_lab", "models"]
    with open("/dev/full", "w") as full:
        out = subprocess.run(code, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert out.returncode == 1
    assert out.stderr.startswith("quasar-lab: the output cannot be written")
    narrow = {**os.environ, "PYTHONIOENCODING": "ascii"}
    out = subprocess.run(
        [*code[:-1], "generate", "--gamma", "γ", "--prompt", "a"], capture_output=True, env=narrow, check=False
    )
    assert out.returncode == 2
    assert out.stderr.count(b"\n") == 1


def test_ctrl_c_saves_the_trace_so_far(capsys, tmp_path, monkeypatch):
    genuine, calls = verification.accept, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return genuine(*args)

    monkeypatch.setattr(verification, "accept", interrupted)
    path = tmp_path / "run.jsonl"
    status, out, err = call(
        capsys, "generate", "--prompt", "Say hi.", "--verifier", "bf16", "--drafter", "none", "--trace", path, "--json"
    )
    assert status == 130
    assert json.loads(out)["finish_reason"] == "cancelled"
    assert err.strip().endswith("interrupted")
    assert Trace.load(path).summary()["new_tokens"] == 3


def test_an_error_cannot_steer_the_terminal(capsys):
    status, _, err = call(capsys, "generate", "--prompt", "a", "--verifier", "\x1b[31mred")
    assert status == 2
    assert "\x1b" not in err
