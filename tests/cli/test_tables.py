"""What commands print for people: tables that fit 80 columns, numbers in words that people use, units, ratios."""

import json
import re
from pathlib import Path

import pytest

import quasar_lab
from quasar_lab import cli
from quasar_lab.cli.bench import print_speedups, print_steps
from quasar_lab.cli.common import print_pairs, print_table
from quasar_lab.evaluation.decode_speed import DecodeResult
from quasar_lab.evaluation.pass_time import StepResult
from quasar_lab.support.readable import readable

SAVED = Path(__file__).parents[2] / "kernels" / "benchmarks" / "results"
UNREADABLE = re.compile(r"\d[eE][-+]\d|[{}\[\]]|True|False|None")
"""What only a programmer reads: exponents with an e, Python's brackets and words."""


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def lines_for_people(text):
    lines = text.splitlines()
    assert lines
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if UNREADABLE.search(line)]
    return lines


def saved(name, kind):
    return kind.from_json(json.loads((SAVED / name).read_text()))


def test_models_fit_and_every_model_is_whole(capsys):
    assert cli.run(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert cli.run(["models"]) == 0
    out = capsys.readouterr().out
    lines_for_people(out)
    for row in listed:
        assert all(part in out for part in (*row["id"].split("/"), f"{row['family']}, {row['license'].split()[0]}"))
        assert f"{row['step_bytes_bf16'] / 1e9:.2f} → {row['step_bytes_w8a8'] / 1e9:.2f}" in out


def test_a_step_stands_beside_its_floor_and_the_first_verifiers(capsys):
    result = saved("step-cpu.json", StepResult)
    print_steps(result)
    lines = lines_for_people(capsys.readouterr().out)
    slow, fast = (result.row(name, 1) for name in ("bf16", "w8a8"))
    assert lines[0].split()[-2:] == ["×", "bf16"]
    row = next(line.split() for line in lines if line.split()[:2] == ["w8a8", "1"])
    assert row[2] == readable(fast.ms_p50)
    assert row[-1] == f"{slow.ms_p50 / fast.ms_p50:.2f}"
    assert any(re.fullmatch(r"stream bandwidth +[\d.]+ GB/s", line) for line in lines)


def test_whole_answers_fit_and_name_their_mean(capsys):
    result = saved("decode-cpu-t0.json", DecodeResult)
    print_speedups(result)
    lines = lines_for_people(capsys.readouterr().out)
    assert sum(line.startswith("geometric mean") for line in lines) == len(result.arms)
    mean = result.row("w8a8", "ngram")
    assert any(f"{mean.speedup:.2f} ({mean.speedup_low:.2f}–{mean.speedup_high:.2f})" in line for line in lines)


def test_long_values_go_on_below_and_units_are_said(capsys):
    print_pairs(
        {"stream_bandwidth_gb_s": 11.54, "cache_bytes": 816851444, "versions": {"torch": "2.13", "triton": "3"}}
    )
    print_table([{"what": "word " * 40, "number": 0.0}, {"what": "short", "number": None}])
    out = capsys.readouterr().out
    lines_for_people(out)
    for said in ("11.5 GB/s", "0.817 GB", "torch 2.13, triton 3", "–"):
        assert said in out
    assert out.split().count("word") == 40


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (1.3, "1.30"), (1.0, "1.00"), (4957.2, "4957"), (99.0, "99.0"), (7.63e-8, "7.63 × 10⁻⁸")],
)
def test_a_number_has_three_figures_and_no_exponent_to_decode(value, shown):
    assert readable(value) == shown


def test_the_version_is_told(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"quasar-lab {quasar_lab.__version__}\n"
