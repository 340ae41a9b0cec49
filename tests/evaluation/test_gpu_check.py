"""The GPU check without a GPU: its logic runs, it finds planted faults, and it reports no speed it did not measure. And
the engine with the real kernels, interpreted."""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from isolated import ROOT, checkout, run_isolated
from quasar_kernels import reference
from quasar_kernels.op_timing import Bench
from quasar_kernels.simulated_device import SimulatedDevice
from quasar_kernels.threads import single_torch_thread
from quasar_kernels.triton import tiles
from speed_results import changed_steps, steps_of

from quasar_lab.evaluation import pass_time
from quasar_lab.evaluation.gpu_check import goals, report, speed
from quasar_lab.evaluation.gpu_check import ops as op_checks
from quasar_lab.evaluation.gpu_check import run as check
from quasar_lab.evaluation.gpu_check import text as text_checks
from quasar_lab.evaluation.gpu_check.random_models import TINY, random_models
from quasar_lab.evaluation.gpu_check.results import Findings, OpTime, PassTime, ProductTime, StepFindings
from quasar_lab.support.machine import stamp


@pytest.fixture(autouse=True)
def one_thread():
    with single_torch_thread():
        yield


def rehearse(tmp_path, capsys, *arguments):
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


@pytest.mark.slow
def test_a_rehearsal_runs_every_section_and_reports_no_speed(tmp_path, capsys):
    status, found, table = rehearse(tmp_path, capsys, "--seed", "5")
    assert status == 0
    assert found["rehearsal"] is True
    assert found["faults"] == {}
    assert {row["case"].split()[0].rstrip(",") for row in found["ops"]} >= {
        *("quantize_rows", "rmsnorm", "rmsnorm_quantize", "silu_mul", "silu_mul_quantize", "rotate", "embed_rows"),
        *("linear_w8a8", "linear_bf16", "rope_append", "attend", "top_table"),
    }
    assert all(row["fault"] is None for name in ("ops", "text") for row in found[name])
    assert len(found["products"]) == 5 * 2 * 16
    assert [(row["verifier"], row["width"]) for row in found["step"]["steps"]] == [
        (name, width) for name in ("bf16", "w8a8") for width in (1, 2, 4, 6, 8, 16, 32, 48)
    ]
    for kind in ("eager", "in_turn"):
        places = [(row["verifier"], row["width"]) for row in found["step"][kind]]
        assert places == [("bf16", 1), ("bf16", 8), ("w8a8", 1), ("w8a8", 8)]
    speeds = [v for path, v in leaves(found) if any(part in path.rpartition(".")[2] for part in report.SPEED_KEYS)]
    assert len(speeds) > 500
    assert set(speeds) == {None}
    assert [row["met"] for row in found["reach"]] == [None] * 3
    assert "no speed is measured" in table
    assert table.count("not measured") == 3
    assert table.count("without graphs") == table.count("without overlap") == 4
    assert "w8a8 at width 8, sum of its ops alone: – ms of – ms" in table


def test_a_wrong_op_is_found_and_named(tmp_path, capsys, monkeypatch):
    class Wrong(SimulatedDevice):
        def rmsnorm(self, x, w, eps, *, out):
            out.copy_(x)

        def top_table(self, logits, k, *, out=None):
            raise TypeError("no such kernel")

    monkeypatch.setattr(check, "SimulatedDevice", Wrong)
    status, found, table = rehearse(tmp_path, capsys, "--only", "ops")
    faults = {row["case"]: row["fault"] for row in found["ops"] if row["fault"]}
    assert status == 1
    assert set(faults) == {"rmsnorm 96", "rmsnorm 517", "top_table 211"}
    assert "relative error" in faults["rmsnorm 96"]
    assert "no such kernel" in faults["top_table 211"]
    assert table.count("WRONG") == 3


def planted(fault):
    """A backend whose rmsnorm (into a buffer) is right but for one thing."""

    class Planted(SimulatedDevice):
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
def test_what_an_op_is_held_to(fault, said):
    ops = planted(fault) if fault else SimulatedDevice()
    inputs = op_checks.Inputs(ops, "cpu", ops.capture, 3)
    cases = {case.label: case for case in op_checks.row_cases(inputs, 96)}
    found = op_checks.examine(cases["rmsnorm 96"], "cpu")
    assert found is None if said is None else said in found


@pytest.mark.parametrize(
    ("fault", "where", "said"),
    [
        ("wrong", "", "relative error"),
        ("height", ", each row alone", "numbers differ"),
        ("graph", ", from a graph", "not written"),
    ],
)
def test_the_vendors_product_is_checked_though_no_tile_asks_for_it(fault, where, said):
    class Vendor(SimulatedDevice):
        def linear_bf16(self, x, w, bias, residual, *, out=None):
            asked = tiles.linear_tile("linear_bf16", w.shape[0], w.shape[1], torch.device("cpu"))["engine"] == "cublas"
            if not asked or (fault == "graph" and self._tape is not None):
                return super()._call(reference.linear_bf16, x, w, bias, residual, out=None if asked else out)
            factor = {"wrong": 1.01, "height": 1 + 1e-6 * (x.shape[0] == 1)}.get(fault, 1)
            return super()._call(lambda *given: reference.linear_bf16(*given) * factor, x, w, bias, residual, out=out)

    ops = Vendor()
    inputs = op_checks.Inputs(ops, "cpu", ops.capture, 3)
    products = [*op_checks.product_cases(inputs, 129, 96), *op_checks.vendor_cases(inputs, 129, 96)]
    found = {case.label: op_checks.examine(case, "cpu") for case in products}
    faults = {label: said for label, said in found.items() if said}
    label = f"linear_bf16 of cuBLAS{where} 129 × 96"
    assert said in faults[label]
    # Other bits at a width are other bits for all three cases.
    assert set(faults) == {label} or fault == "height"
    assert all("cuBLAS" in label for label in faults)


def test_a_text_that_depends_on_the_width_is_found(tmp_path, capsys, monkeypatch):
    def drifting(x, *more):
        return reference.linear_bf16(x * (1 + 1e-3 * (x.shape[0] > 1)), *more)

    class Drifting(SimulatedDevice):
        def linear_bf16(self, *arguments, **options):
            return self._call(drifting, *arguments, **options)

    monkeypatch.setattr(check, "SimulatedDevice", Drifting)
    status, found, _ = rehearse(tmp_path, capsys, "--only", "text")
    assert status == 1
    assert found["text"][0]["case"] == "bf16: bits of 40 tokens in passes of 1…"
    assert "numbers differ" in found["text"][0]["fault"]


class Turned(SimulatedDevice):
    """Its kernels overlap, and compute something else where they may not. seen: the passes of each kind."""

    def __init__(self):
        super().__init__()
        self.serial, self.seen = False, []

    @contextmanager
    def in_turn(self):
        self.serial = True
        yield
        self.serial = False

    def embed_rows(self, table, ids):
        self.seen.append((self.serial, len(ids), self._tape is not None))
        serial = self.serial
        return self._call(lambda table, ids: table[ids.long()].float() * (1.5 if serial else 1), table, ids)


def test_bits_that_depend_on_the_overlap_are_found(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(check, "SimulatedDevice", Turned)
    status, found, _ = rehearse(tmp_path, capsys, "--only", "text")
    faults = [row["case"] for row in found["text"] if row["fault"]]
    assert status == 1
    assert faults == [
        f"{name}: bits without overlap, in passes of {width}…" for name in ("bf16", "w8a8") for width in (1, 5, 16)
    ]


def test_steps_without_overlap_are_graphs_captured_so():
    ops = Turned()
    bench = Bench(ops, "cpu", ops, 1)
    pair = random_models(bench, TINY)
    for verifier in pair:
        verifier.forward([1] * 3, verifier.new_cache(8))
    ops.seen.clear()
    rows = list(speed.passes_without_overlap(pair, (1, 3), 20, 2))
    assert [(row.verifier, row.width) for row in rows] == [("bf16", 1), ("bf16", 3), ("w8a8", 1), ("w8a8", 3)]
    assert all(serial for serial, _, _ in ops.seen)
    assert [rows for _, rows, captured in ops.seen if captured] == [1, 3, 1, 3]
    assert not ops.serial


def test_a_run_that_fails_costs_no_other(tmp_path, capsys, monkeypatch):
    def generate(verifier, prompt, **options):
        if options.get("gamma") == 16:
            raise subprocess.CalledProcessError(1, "ptxas")
        return plain(verifier, prompt, **options)

    plain = text_checks.generate
    monkeypatch.setattr(text_checks, "generate", generate)
    status, found, table = rehearse(tmp_path, capsys, "--only", "text")
    faults = {row["case"]: row["fault"] for row in found["text"] if row["fault"]}
    assert status == 1
    assert len(faults) == 4
    assert all("γ 16" in case and "ptxas" in fault for case, fault in faults.items())
    assert found["text"][-1]["case"] == "w8a8+bf16: text equals bf16's"
    assert f"text: {len(found['text']) - 4} of {len(found['text'])} right" in table


def test_what_a_section_found_stays_when_it_fails(tmp_path, capsys, monkeypatch):
    def other_ops(*given):
        yield OpTime("rmsnorm", {"bf16": 5, "w8a8": 0}, width=8, us_p20=3.0, us_p50=3.0, us_p80=3.0)
        raise OSError("no compiler")

    def eager(*given):
        yield PassTime("bf16", width=1, ms_p20=9.0, ms_p50=9.0, ms_p80=9.0)
        raise AssertionError

    monkeypatch.setattr(speed, "other_op_times", other_ops)
    monkeypatch.setattr(speed, "eager_passes", eager)
    status, found, table = rehearse(tmp_path, capsys, "--only", "step,other")
    assert status == 1
    assert found["faults"] == {"step without graphs": "AssertionError: ", "other": "OSError: no compiler"}
    assert [row["op"] for row in found["other"]] == ["rmsnorm"]
    assert (len(found["step"]["steps"]), len(found["step"]["eager"]), len(found["step"]["in_turn"])) == (16, 1, 4)
    assert table.count("WRONG") == 2

    monkeypatch.setattr(pass_time, "step", lambda *given: {}["nothing"])
    status, found, table = rehearse(tmp_path, capsys, "--only", "step")
    assert status == 1
    assert set(found["faults"]) == {"step", "step without graphs"}
    assert len(found["step"]["in_turn"]) == 4
    assert "width  1" not in table


def test_a_sample_begins_on_a_busy_device(monkeypatch):
    """Else it would include what the host needs to launch a graph."""
    bench, done = Bench(SimulatedDevice(), "cpu", SimulatedDevice(), 1), []
    bench.device = "cuda"
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("synchronize"))
    monkeypatch.setattr(bench.runtime, "mark", lambda: done.append("mark") or len(done), raising=False)
    monkeypatch.setattr(bench.runtime, "seconds", lambda begun, ended: float(10 * begun + ended), raising=False)
    assert bench._sample(lambda: done.append("replay"), 2, ()) == (10 * 2 + 4) / 2
    assert done == ["replay", "mark", "replay", "mark", "synchronize"]


def test_counts_are_those_of_a_step():
    """Ops that differ in their transform only count as one here."""
    called = Counter()

    class Counted(SimulatedDevice):
        def _call(self, op, *arguments, **options):
            if self._tape is not None:
                called[op.__name__.lstrip("_")] += 1
            return super()._call(op, *arguments, **options)

    ops = Counted()
    bench = Bench(ops, "cpu", ops, 1)
    config = TINY
    counts = speed.other_counts(config)
    assert {name for found in counts.values() for name in found} <= set(speed.other_calls(bench, config, 2))
    for verifier in random_models(bench, config):
        called.clear()
        verifier.forward([1, 2, 3], verifier.new_cache(8))
        wanted = Counter({f"linear_{verifier.name}": 0})
        for _, _, count in speed.product_shapes(config).values():
            wanted[f"linear_{verifier.name}"] += count
        for name, count in counts[verifier.name].items():
            wanted[name.split(",")[0]] += count
        assert called == wanted


def product(op, width, count, us, share):
    times = {"us_p20": us, "us_p50": us, "us_p80": us}
    return ProductTime(
        op=op, name="any", shape=(1, 1), count=count, width=width, bytes=1, gb_s=1.0, share_of_copy=share, **times
    )


def found(**sections):
    return Findings("a GPU", 1, stamp(), **sections)


def test_the_ops_of_a_step_are_added_up():
    products = [
        product(op, width, count, us, 0.5)
        for op, us in (("linear_bf16", 100.0), ("linear_w8a8", 60.0))
        for count in (36, 1)
        for width in goals.PRODUCT_WIDTHS
    ]
    other = [
        OpTime(op, {"bf16": bf16, "w8a8": w8a8}, width, us_p20=5.0, us_p50=5.0, us_p80=5.0)
        for op, bf16, w8a8 in (("rmsnorm", 72, 0), ("quantize_rows", 0, 36), ("attend", 36, 36))
        for width in (1, 8)
    ]
    all_ops = found(products=products, other=other)
    assert goals.sum_of_ops(all_ops, "bf16", 8) == pytest.approx((37 * 100 + 108 * 5) / 1000)
    assert goals.sum_of_ops(all_ops, "w8a8", 8) == pytest.approx((37 * 60 + 72 * 5) / 1000)
    unfinished = found(products=products, other=other, faults={"other": "it stopped"})
    assert goals.sum_of_ops(unfinished, "w8a8", 8) is None
    assert goals.sum_of_ops(found(products=products), "w8a8", 8) is None
    steps = steps_of(widths=goals.STEP_WIDTHS)
    on_device = {"bf16": 5.5, "w8a8": None}
    steps = changed_steps(
        replace(steps, bandwidth_gb_s=4000.0),
        lambda row: replace(row, ms_p50=6.0, fraction_of_floor=0.8, device_ms_p50=on_device[row.verifier]),
    )
    all_ops.step = StepFindings(steps)
    table = report.table(all_ops, rehearsal=False)
    assert "bf16 at width 8, sum of its ops alone: 4.24 ms of 6 ms (5.5 ms on the device)" in table
    assert "w8a8 at width 8, sum of its ops alone: 2.58 ms of 6 ms\n" in table
    assert "copy 4000 GB/s" in table
    assert "  width  1  bf16 6 (1.25)   w8a8 6 (1.25)" in table


def test_goals_are_judged_by_the_worst_width():
    def change(row):
        if row.width > 8:  # no goals are set for these
            return replace(row, ms_p50=40.0 if row.verifier == "w8a8" else 4.0, fraction_of_floor=0.1)
        ms = {"bf16": 4.0, "w8a8": 2.0}[row.verifier] * (1.2 if row.width == 8 else 1)
        ms = 2.8 if (row.verifier, row.width) == ("w8a8", 6) else ms
        return replace(row, ms_p50=ms, fraction_of_floor=0.7 if (row.verifier, row.width) == ("bf16", 1) else 0.9)

    def good(row):
        return replace(row, ms_p50=2.0 if row.verifier == "w8a8" else 3.6, fraction_of_floor=0.85)

    steps = changed_steps(steps_of(widths=goals.STEP_WIDTHS), change)
    products = [
        product("linear_w8a8", width, count, us, share)
        for width in range(1, 17)
        for count, us, share in ((36, 10.0, 0.6 if width == 9 else 0.9), (1, 360.0, 0.8))
    ]
    share, ratio, floor = goals.goals(found(step=StepFindings(steps), products=products))
    assert share.value == pytest.approx(0.7)
    assert (share.met, ratio.value, ratio.met) == (False, pytest.approx(0.7), False)
    assert (floor.value, floor.met) == (pytest.approx(1 / 0.7), False)
    unfinished = goals.goals(found(products=products, faults={"products": "it stopped"}))
    assert unfinished[0].met is None
    steps = changed_steps(steps, good)
    assert [goal.met for goal in goals.goals(found(step=StepFindings(steps)))] == [None, True, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_it_says_so_and_ends_with_2(capsys, tmp_path):
    assert check.main(["--out", str(tmp_path / "out.json")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "CUDA" in err or "Triton" in err
    assert not (tmp_path / "out.json").exists()
    assert check.main(["--only", "speed"]) == 2
    assert "accepted: ops, text" in capsys.readouterr().err


BARE = ("torch", "triton", "numpy.random", "safetensors", "filelock")
"""What a GPU machine has installed, beside what these need themselves."""

MORE = ("transformers", "gguf", "accelerate", "sentencepiece", "tokenizers", "typer", "rich", "plotly", "pandas")
LAB = ("ipywidgets", "anywidget", "IPython", "jupyterlab", "papermill", "nbformat", "scipy")
"""What is not there."""


def test_from_a_bare_checkout_it_runs_by_its_path(tmp_path):
    """On a machine with torch, triton, numpy, safetensors and filelock alone: any other import fails there."""
    folder = checkout(tmp_path / "checkout") / "quasar_lab" / "evaluation" / "gpu_check"
    code = (
        f"for name in {(*MORE, *LAB)!r}: sys.modules[name] = None\n"
        "import runpy; sys.argv = ['gpu_check', '--cpu-rehearsal', '--only', 'other']\n"
        f"runpy.run_path({str(folder)!r}, run_name='__main__')"
    )
    done = run_isolated(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "gpu_check.json").read_text())["faults"] == {}


def test_it_imports_what_a_bare_machine_has_and_no_more(tmp_path):
    root = checkout(tmp_path / "checkout")
    code = (
        f"sys.path[:0] = {[str(root), str(root / 'kernels')]!r}\n"
        f"import {', '.join(BARE)}\n"
        "packages = lambda: {name.split('.')[0] for name in sys.modules}\n"
        "before = packages()\n"
        "import quasar_lab.evaluation.gpu_check.run as run\n"
        f"assert run.__file__.startswith({str(root)!r})\n"
        "print(*sorted(packages() - before - set(sys.stdlib_module_names)))"
    )
    done = run_isolated(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["quasar_kernels", "quasar_lab"]


@pytest.mark.parametrize("command", ["path", "module"])
def test_both_commands_are_the_check(tmp_path, command):
    folder = ROOT / "quasar_lab" / "evaluation" / "gpu_check"
    how = {"path": [str(folder)], "module": ["-m", "quasar_lab.evaluation.gpu_check"]}[command]
    done = subprocess.run(
        [sys.executable, *how, "--only", "speed"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "accepted: ops, text, step, products, other" in done.stderr


@pytest.mark.slow
def test_the_engine_with_the_real_kernels_interpreted():
    """In a process of its own: the variable must be there before Triton is first imported."""
    pytest.importorskip("triton", reason="Triton is for Linux")
    script = Path(__file__).parents[1] / "interpreted_engine.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
