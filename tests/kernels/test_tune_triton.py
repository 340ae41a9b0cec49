"""The search for tiles, with a made-up clock: what it finds, what it leaves out, and the file it writes."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from isolated import checkout, run_isolated

pytest.importorskip("triton", reason="Triton is for Linux")
from quasar_kernels.simulated_device import SimulatedDevice
from quasar_kernels.triton import compiled, tiles

sys.path.append(str(Path(__file__).parents[2] / "kernels" / "benchmarks"))
tune = importlib.import_module("tune_triton")
QWEN = next(shape for shape in compiled.SHAPES if shape.name == "Qwen3-8B")


def bench():
    return tune.Bench(SimulatedDevice(), "cpu", SimulatedDevice(), 0)


def test_the_search_walks_to_the_fastest_tile_and_measures_none_twice():
    best, asked = {"block_n": 16, "block_k": 512, "split_k": 2, "warps": 8, "stages": 6}, []

    def measure(tile):
        asked.append(tuple(tile.values()))
        return 1.0 + sum(abs(choices.index(tile[name]) - choices.index(best[name])) for name, choices in all_choices)

    all_choices = list(tune.CHOICES["linear_w8a8"].items())
    start = tune.conservative("linear_w8a8", n=4096, k=4096)
    found, took = tune.descend([start], tune.CHOICES["linear_w8a8"], measure)
    assert {name: found[name] for name in best} == best
    assert found["rows"] == 16
    assert took == 1.0
    assert len(asked) == len(set(asked)) < 60


def test_the_search_begins_from_the_faster_start():
    """Between the two, every step is slower."""
    start = tune.conservative("linear_w8a8", n=4096, k=4096)
    unsplit, asked = {**start, **tune.UNSPLIT["linear_w8a8"]}, []

    def measure(tile):
        asked.append(tile)
        return {tune._key(start): 3.0, tune._key(unsplit): 2.0}.get(tune._key(tile), 9.0)

    for starts in ([start, unsplit], [unsplit, start]):
        assert tune.descend(starts, tune.CHOICES["linear_w8a8"], measure) == (unsplit, 2.0)
    assert asked.count(start) == asked.count(unsplit) == 2
    alone = lambda tile: 7.0 if tile == start else None  # noqa: E731
    assert tune.descend([start, unsplit], tune.CHOICES["linear_w8a8"], alone) == (start, 7.0)


def test_a_tile_that_does_not_fit_or_is_wrong_is_passed_over():
    start = tune.conservative("attend", size=128, per=4)
    found, took = tune.descend([start], tune.CHOICES["attend"], lambda tile: 5.0 if tile == start else None)
    assert (found, took) == (start, 5.0)
    with pytest.raises(RuntimeError, match="runs here"):
        tune.descend([start], tune.CHOICES["attend"], lambda tile: None)


@pytest.mark.parametrize(
    ("factor", "accepted"), [(1.0, True), (1.002, True), (1.01, False), (float("nan"), False), (None, False)]
)
def test_a_tile_is_timed_only_where_it_fits_and_its_results_are_close(factor, accepted):
    """Values as small as those of attention over a long context, the second of two calls off; None: it does not fit."""
    right = 0.026 * torch.randn(5, 512, generator=torch.Generator().manual_seed(0))

    def call(other):
        if tiles.attend_tile(64, 3, torch.device("cpu"))["stages"] == 2:
            return right
        if other is None:
            raise tune.TritonError
        return right * other

    start = {**tune.conservative("attend", size=64, per=3), "stages": 2}
    calls = [lambda: call(1.0), lambda: call(factor)]
    measure = tune.measured(bench(), "attend", calls, start, tune.near(tune.CLOSE))
    assert measure(start) is not None
    assert (measure({**start, "stages": 3}) is not None) == accepted


@pytest.mark.parametrize("op", tune.CHOICES)
def test_every_conservative_tile_is_among_the_choices(op):
    for entry in tiles.table("conservative")[op]:
        assert all(entry[name] in values for name, values in tune.CHOICES[op].items())
        assert {**entry, **tune.UNSPLIT.get(op, {})}.keys() == entry.keys()
    for name, value in tune.UNSPLIT.get(op, {}).items():
        assert value in tune.CHOICES[op][name]


def test_what_matters_most_to_a_step_is_tuned_first():
    asked = [(op, *tuning.args[2:]) for op, tuning in tune.jobs(None, QWEN) if op != "attend"]
    layer = [(24576, 4096), (4096, 12288), (6144, 4096), (4096, 4096)]
    narrow = [(op, *shape) for shape in [*layer, (151936, 4096)] for op in ("linear_w8a8", "linear_bf16")]
    assert asked == [*narrow, *(("linear_w8a8_wide", *shape) for shape in [*layer, (151936, 4096)])]
    assert [op for op, _ in tune.jobs(None, QWEN)].index("attend") == 8  # before the head


@pytest.mark.parametrize(
    ("op", "rows"), [("linear_w8a8", tune.WIDTH), ("linear_bf16", tune.WIDTH), ("linear_w8a8_wide", tune.WIDE_WIDTH)]
)
def test_a_product_is_measured_at_its_width_with_tiles_of_its_own(monkeypatch, op, rows):
    seen = []

    class Watched(SimulatedDevice):
        def _call(self, what, *arguments, **options):
            seen.append((arguments[0].shape[0], tiles._forced[op]))
            return super()._call(what, *arguments, **options)

    monkeypatch.setattr(tune, "REPLAYS", 1)
    start, unsplit = tune.conservative(op, n=48, k=96), tune.UNSPLIT.get(op, {"split_k": 1})
    monkeypatch.setitem(tune.CHOICES, op, {name: [value, start[name]] for name, value in unsplit.items()})
    entry = tune.tune_product(tune.Bench(Watched(), "cpu", SimulatedDevice(), 0), op, 48, 96)
    assert {row for row, _ in seen} == {rows}
    tried = [tile for place, (_, tile) in enumerate(seen) if tile not in [before for _, before in seen[:place]]]
    assert tried[:2] == [start, {**start, **unsplit}]
    assert {tile.get("engine") for tile in tried} == ({"triton", "cublas"} if op == "linear_bf16" else {None})
    assert (entry["n"], entry["k"]) == (48, 96)
    assert entry["microseconds"] > 0


def test_attention_is_measured_over_a_short_and_a_long_context_in_turn(monkeypatch):
    seen = []

    class Watched(SimulatedDevice):
        def attend(self, q, k, v, lengths):
            seen.append((int(lengths.max()), k.shape[1]))
            return q.reshape(q.shape[0], -1)

    monkeypatch.setattr(tune, "REPLAYS", 1)
    monkeypatch.setitem(tune.CHOICES, "attend", {})
    small = compiled.Shape("tiny", 32, 32, 2, 1, 16, 64, 64, (1, 1))
    entry = tune.tune_attention(tune.Bench(Watched(), "cpu", SimulatedDevice(), 0), small)
    assert seen[:4] == [(1024, 16384), (8192, 16384)] * 2
    assert len(seen) % 2 == 0
    assert (entry["size"], entry["per"]) == (16, 2)
    assert "registers" in entry


def run_main(monkeypatch, tmp_path, *arguments):
    """The script on a GPU that is made up."""
    monkeypatch.setattr(tune.ops, "unavailable", lambda: None)
    monkeypatch.setattr(tune.torch.cuda, "get_device_name", lambda: "GPU A")
    monkeypatch.setattr(tune, "CudaRuntime", SimulatedDevice)
    monkeypatch.setattr(tune, "Bench", lambda *given, **named: None)
    monkeypatch.setattr(sys, "argv", ["tune_triton.py", "--out", str(tmp_path), *arguments])
    tune.main()
    return json.loads((tmp_path / "gpu-a.json").read_text())


def test_models_are_tuned_in_the_order_asked_for_and_one_fault_costs_no_other(monkeypatch, tmp_path, capsys):
    def jobs(bench, shape):
        def fails():
            raise RuntimeError("no such product")

        return [("linear_bf16", fails), ("linear_w8a8", lambda: {"n": shape.hidden})]

    monkeypatch.setattr(tune, "jobs", jobs)
    found = run_main(monkeypatch, tmp_path, "--shapes", "Qwen3-8B", "--shapes", "SmolLM2-135M")
    assert found["linear_w8a8"] == [{"n": 4096}, {"n": 576}]
    assert "linear_bf16" not in found
    assert found["about"]["context"] == [1024, 8192]
    assert capsys.readouterr().out.count("no such product") == 2


def test_what_is_written_is_read_back(monkeypatch, tmp_path):
    jobs = [(op, start) for shape in compiled.SHAPES for op, start in tune.jobs(None, shape)]
    assert {op for op, _ in jobs} == set(tune.CHOICES)
    tile = tune.conservative("linear_bf16", n=64, k=64)
    tune.write({"linear_bf16": [{"n": 64, "k": 64, **tile, "microseconds": 3.5}]}, {}, tmp_path / "gpu-a.json")
    (tmp_path / "conservative.json").write_text((tiles.FOLDER / "conservative.json").read_text())
    monkeypatch.setattr(tiles, "FOLDER", tmp_path)
    tiles.table.cache_clear()
    written = json.loads((tmp_path / "gpu-a.json").read_text())["linear_bf16"]
    assert tiles.table("gpu-a")["linear_bf16"][: len(written)] == written
    tiles.table.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_from_a_checkout_without_install_and_without_a_gpu_it_says_so(tmp_path):
    script = checkout(tmp_path / "checkout") / "kernels" / "benchmarks" / "tune_triton.py"
    shutil.rmtree(tmp_path / "checkout" / "quasar_lab")  # it needs nothing of that
    code = f"import runpy; sys.argv = ['tune_triton.py']; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = run_isolated(code, tmp_path)
    assert done.returncode == 2, done.stderr
    assert "tiles are measured on a GPU: no CUDA device" in done.stderr
