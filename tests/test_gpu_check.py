"""The check of the CUDA side, rehearsed: that its logic runs, finds planted faults, and reports no speed it did not
measure; and the engine with the real kernels, interpreted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from quasar_kernels import reference
from quasar_kernels.stand_in import StandIn
from quasar_kernels.threads import single_torch_thread

FOLDER = Path(__file__).parents[1] / "kernels" / "benchmarks"


@pytest.fixture(scope="module")
def check():
    """The script as a module."""
    with pytest.MonkeyPatch.context() as patch, single_torch_thread():
        patch.syspath_prepend(str(FOLDER))
        import gpu_check

        yield gpu_check


def rehearse(check, tmp_path, capsys, *arguments):
    """(exit status, document, table)"""
    capsys.readouterr()
    status = check.main(["--cpu-rehearsal", "--out", str(tmp_path / "out.json"), *arguments])
    return status, json.loads((tmp_path / "out.json").read_text()), capsys.readouterr().out


def leaves(value, path=""):
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{path}.{key}")
    else:
        yield path, value


def test_a_rehearsal_runs_every_section_and_reports_no_speed(check, tmp_path, capsys):
    status, found, table = rehearse(check, tmp_path, capsys, "--seed", "5")
    assert status == 0
    assert found["rehearsal"] is True
    assert found["faults"] == {}
    assert {row["case"].split()[0].rstrip(",") for row in found["ops"]} >= {
        *("quantize_rows", "rmsnorm", "rmsnorm_quantize", "silu_mul", "silu_mul_quantize", "rotate", "embed_rows"),
        *("linear_w8a8", "linear_bf16", "rope_append", "attend", "top_rows"),
    }
    assert all(row["fault"] is None for name in ("ops", "text") for row in found[name])
    assert len(found["products"]) == 5 * 2 * 16
    speeds = [v for path, v in leaves(found) if any(part in path.rpartition(".")[2] for part in check.SPEED_KEYS)]
    assert len(speeds) > 500
    assert set(speeds) == {None}
    assert [row["met"] for row in found["reach"]] == [None] * 3
    assert "no speed is measured" in table
    assert table.count("not measured") == 3


def test_a_wrong_op_is_found_and_named(check, tmp_path, capsys, monkeypatch):
    class Wrong(StandIn):
        def rmsnorm(self, x, w, eps, *, out):
            out.copy_(x)

        def top_rows(self, logits, k, *, out=None):
            raise TypeError("no such kernel")

    monkeypatch.setattr(check, "StandIn", Wrong)
    status, found, table = rehearse(check, tmp_path, capsys, "--only", "ops")
    faults = {row["case"]: row["fault"] for row in found["ops"] if row["fault"]}
    assert status == 1
    assert set(faults) == {"rmsnorm 96", "rmsnorm 517", "top_rows 211"}
    assert "relative error" in faults["rmsnorm 96"]
    assert "no such kernel" in faults["top_rows 211"]
    assert table.count("WRONG") == 3


def planted(fault):
    """A backend whose rmsnorm (into a buffer) is right but for one thing."""

    class Planted(StandIn):
        def rmsnorm(self, x, w, eps, *, out):
            right = super().__getattr__("rmsnorm")(x, w, eps)
            if fault == "unwritten":
                out[:, :-1] = right[:, :-1]
            elif fault == "behind":
                out.copy_(right)
                out.as_strided((x.shape[0] + 1, x.shape[1]), (x.shape[1], 1))[-1] = 0.0
            elif fault == "width":
                out.copy_(right * (1 + 1e-6 * (x.shape[0] == 3)))

    return Planted()


@pytest.mark.parametrize(
    ("fault", "said"), [("unwritten", "not written"), ("behind", "behind its end"), ("width", "other bits"), ("", None)]
)
def test_what_an_op_is_held_to(check, fault, said):
    ops = planted(fault) if fault else StandIn()
    cases = {case.label: case for case in check.op_checks.row_cases(check.op_checks.Inputs(ops, "cpu", 3), 96)}
    found = check.op_checks.examine(cases["rmsnorm 96"], "cpu")
    assert found is None if said is None else said in found


def test_a_text_that_depends_on_the_width_is_found(check, tmp_path, capsys, monkeypatch):
    def drifting(x, *more):
        return reference.linear_bf16(x * (1 + 1e-3 * (x.shape[0] > 1)), *more)

    class Drifting(StandIn):
        def linear_bf16(self, *arguments, **options):
            return self._call(drifting, *arguments, **options)

    monkeypatch.setattr(check, "StandIn", Drifting)
    status, found, _ = rehearse(check, tmp_path, capsys, "--only", "text")
    assert status == 1
    assert found["text"][0] == {"case": "bf16: bits of 40 tokens in passes of 1…", "fault": "they differ"}


def test_goals_are_judged_by_the_worst_width(check):
    steps = [
        {"verifier": name, "width": width, "ms_p50": ms * (1.2 if width == 8 else 1), "fraction_of_floor": 0.9}
        for name, ms in (("bf16", 4.0), ("w8a8", 2.0))
        for width in check.STEP_WIDTHS
    ]
    next(row for row in steps if (row["verifier"], row["width"]) == ("w8a8", 6))["ms_p50"] = 2.8
    next(row for row in steps if (row["verifier"], row["width"]) == ("bf16", 1))["fraction_of_floor"] = 0.7
    products = [
        {"op": "linear_w8a8", "width": width, "count": count, "us_p50": us, "share_of_copy": share}
        for width in range(1, 17)
        for count, us, share in ((36, 10.0, 0.6 if width == 9 else 0.9), (1, 360.0, 0.8))
    ]
    share, ratio, floor = check.reach({"step": {"steps": steps}, "products": products})
    assert share["value"] == pytest.approx(0.7)
    assert (share["met"], ratio["value"], ratio["met"]) == (False, pytest.approx(0.7), False)
    assert (floor["value"], floor["met"]) == (pytest.approx(1 / 0.7), False)
    steps = [{**row, "ms_p50": 2.0 if row["verifier"] == "w8a8" else 3.6, "fraction_of_floor": 0.85} for row in steps]
    assert [row["met"] for row in check.reach({"step": {"steps": steps}})] == [None, True, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_it_says_so_and_ends_with_2(check, capsys, tmp_path):
    assert check.main(["--out", str(tmp_path / "out.json")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "CUDA" in err or "Triton" in err
    assert not (tmp_path / "out.json").exists()
    assert check.main(["--only", "speed"]) == 2
    assert "accepted: ops, text" in capsys.readouterr().err


def test_it_runs_as_a_script_from_anywhere_without_the_lab_extra(tmp_path):
    """figures, widgets and reports are never imported."""
    code = (
        "import runpy, sys; sys.argv = ['gpu_check.py', '--cpu-rehearsal', '--only', 'other']\n"
        "for name in ('plotly', 'pandas', 'ipywidgets', 'IPython', 'jupyterlab'): sys.modules[name] = None\n"
        f"runpy.run_path({str(FOLDER / 'gpu_check.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "gpu_check.json").exists()


@pytest.mark.slow
def test_the_engine_with_the_real_kernels_interpreted():
    """In a process of its own: the variable must be there before Triton is first imported."""
    pytest.importorskip("triton", reason="Triton is for Linux")
    script = Path(__file__).with_name("interpreted_engine.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
