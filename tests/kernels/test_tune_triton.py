"""The search for tiles, with a made-up clock: what it finds, what it leaves out, and the file it writes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux")
from quasar_kernels.triton import compiled, tiles

BENCHMARKS = Path(__file__).parents[2] / "kernels" / "benchmarks"
sys.path.append(str(BENCHMARKS))
tune = importlib.import_module("tune_triton")


def test_the_search_walks_to_the_fastest_tile_and_measures_none_twice():
    best, asked = {"block_n": 16, "block_k": 512, "split_k": 2, "warps": 8, "stages": 6}, []

    def measure(tile):
        asked.append(tuple(tile.values()))
        return 1.0 + sum(abs(choices.index(tile[name]) - choices.index(best[name])) for name, choices in all_choices)

    all_choices = list(tune.CHOICES["linear_w8a8"].items())
    start = tune.conservative("linear_w8a8", n=4096, k=4096)
    found, took = tune.descend(start, tune.CHOICES["linear_w8a8"], measure)
    assert {name: found[name] for name in best} == best
    assert found["rows"] == 16
    assert took == 1.0
    assert len(asked) == len(set(asked)) < 60


def test_a_tile_that_does_not_fit_or_is_wrong_is_passed_over():
    start = tune.conservative("attend", size=128, per=4)
    found, took = tune.descend(start, tune.CHOICES["attend"], lambda tile: 5.0 if tile == start else None)
    assert (found, took) == (start, 5.0)
    with pytest.raises(RuntimeError, match="does not run"):
        tune.descend(start, tune.CHOICES["attend"], lambda tile: None)


@pytest.mark.parametrize("op", ["linear_w8a8", "linear_bf16"])
def test_every_conservative_tile_is_among_the_choices(op):
    for entry in tiles.table("conservative")[op]:
        assert all(entry[name] in values for name, values in tune.CHOICES[op].items())


def test_what_is_written_is_read_back(monkeypatch, tmp_path):
    jobs = [(op, start) for shape in compiled.SHAPES for op, start in tune.jobs(shape)]
    assert {op for op, _ in jobs} == {"linear_w8a8", "linear_bf16", "attend"}
    tile = tune.conservative("linear_bf16", n=64, k=64)
    tune.write({"linear_bf16": [{"n": 64, "k": 64, **tile, "microseconds": 3.5}]}, {}, tmp_path / "gpu-a.json")
    (tmp_path / "conservative.json").write_text((tiles.FOLDER / "conservative.json").read_text())
    monkeypatch.setattr(tiles, "FOLDER", tmp_path)
    tiles.table.cache_clear()
    assert tiles.table("gpu-a")["linear_bf16"] == json.loads((tmp_path / "gpu-a.json").read_text())["linear_bf16"]
    tiles.table.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "tune_triton.py")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
