"""The Triton backend where there is no GPU: what it says, which tiles it takes, what it would launch, and its kernels
in the interpreter."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux")
from quasar_kernels import BackendUnavailable, select
from quasar_kernels import triton as ops
from quasar_kernels.triton import compiled, launch, tiles

INTERPRETED = Path(__file__).with_name("triton_interpreted.py")
CPU, META = torch.device("cpu"), torch.device("meta")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["not slow", "slow"])
def test_every_kernel_agrees_with_the_reference_in_the_interpreter(selection):
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", selection, str(INTERPRETED)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@without_gpu
def test_without_a_gpu_it_says_so():
    assert "no CUDA device" in ops.unavailable()
    with pytest.raises(BackendUnavailable, match="triton: no CUDA device"):
        select("triton", "cuda")


def test_without_triton_it_says_so():
    hide = "import sys; sys.modules['triton'] = None; "
    code = hide + "from quasar_kernels import availability; print(availability()['triton'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "Triton is not installed" in done.stdout


@without_gpu
def test_a_tensor_of_another_device_is_an_error():
    with pytest.raises(TypeError, match=r"x is torch\.float32 on cpu; accepted: .* on cuda"):
        ops.rmsnorm(torch.ones(2, 4), torch.ones(4), 1e-5)
    with pytest.raises(TypeError, match=r"wq is torch\.int8 on cpu"):
        ops.pack_w8a8(torch.ones(2, 4, dtype=torch.int8))


# ---- tiles


def test_a_device_without_its_own_tiles_warns_once(monkeypatch, tmp_path):
    conservative = (tiles.FOLDER / "conservative.json").read_text()
    (tmp_path / "conservative.json").write_text(conservative)
    monkeypatch.setattr(tiles, "FOLDER", tmp_path)
    tiles.table.cache_clear()
    with pytest.warns(RuntimeWarning, match="no tuned tiles for nvidia-x1"):
        assert tiles.table("nvidia-x1") == json.loads(conservative)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiles.table("nvidia-x1")
        tiles.table("conservative")
    own = {"attend": [{"size": 64, "per": 1, "rows": 16, "split": 64, "warps": 2, "stages": 1}]}
    (tmp_path / "nvidia-x2.json").write_text(json.dumps(own))
    merged = tiles.table("nvidia-x2")
    assert merged["attend"] == own["attend"] + json.loads(conservative)["attend"]
    assert merged["linear_w8a8"] == json.loads(conservative)["linear_w8a8"]
    tiles.table.cache_clear()


def test_a_tuned_model_leaves_far_shapes_what_was_set_for_theirs(monkeypatch, tmp_path):
    conservative = json.loads((tiles.FOLDER / "conservative.json").read_text())
    tuned = {**conservative["linear_w8a8"][1], "n": 4096, "k": 4096, "block_n": 16}
    (tmp_path / "conservative.json").write_text(json.dumps(conservative))
    (tmp_path / "nvidia-x3.json").write_text(json.dumps({"about": {"measured": True}, "linear_w8a8": [tuned]}))
    monkeypatch.setattr(tiles, "FOLDER", tmp_path)
    monkeypatch.setattr(tiles, "_slug", lambda device: "nvidia-x3")
    tiles.table.cache_clear()
    assert tiles.table("nvidia-x3")["about"] == {"measured": True}
    assert tiles.linear_tile("linear_w8a8", 4096, 4096, CPU) == tuned  # the conservative entry is as near
    assert tiles.linear_tile("linear_w8a8", 5120, 5120, CPU) == tuned
    far = tiles.linear_tile("linear_w8a8", 576, 576, CPU)
    assert far == conservative["linear_w8a8"][0]
    tiles.table.cache_clear()
    tiles._nearest.cache_clear()


def test_the_nearest_shape_is_taken():
    exact = tiles.linear_tile("linear_w8a8", 4096, 14336, CPU)
    assert (exact["n"], exact["k"]) == (4096, 14336)
    near = tiles.linear_tile("linear_w8a8", 4000, 12288, CPU)
    assert (near["n"], near["k"]) == (4096, 14336)
    assert tiles.device_slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"


@pytest.mark.parametrize("path", sorted(tiles.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_tile_files_keep_what_width_invariance_needs(path):
    table = json.loads(path.read_text())
    for op in ("linear_w8a8", "linear_bf16"):
        assert all(entry["rows"] == 16 and entry["split_k"] >= 1 for entry in table.get(op, []))
    assert all(entry["engine"] in ("triton", "cublas") for entry in table.get("linear_bf16", []))
    assert all(entry["split_k"] >= 1 for entry in table.get("linear_w8a8_wide", []))  # sums are exact in any order
    assert all(entry["split"] % 64 == 0 and entry["rows"] >= 16 for entry in table.get("attend", []))
    assert all(0 < entry["registers"] <= 255 for entry in table.get("attend", []))
    for entry in (entry for op, entries in table.items() if op != "about" for entry in entries):
        sizes = [entry[key] for key in ("rows", "block_n", "block_k", "warps") if key in entry]
        assert all(size & (size - 1) == 0 for size in sizes)


# ---- launches


@pytest.mark.parametrize("shape", compiled.SHAPES, ids=lambda shape: shape.name)
def test_every_width_runs_the_same_machine_code(shape):
    def forms(width):
        return {(label, compiled.form(one)) for label, one in compiled.launches(shape, width) if "tree" not in label}

    fives = forms(5)
    assert len(fives) > 15
    for width in (1, 2, 4, 15, 16):
        assert forms(width) == fives
    wider = forms(17) - fives
    assert {label.split()[-1] for label, _ in wider} == {"w8a8"}  # exact in any tile


def test_grids_have_one_axis_that_is_long_enough():
    with launch.recording() as noted:
        ops.quantize_rows(torch.empty(70_000, 8, device=META))
        ops.linear_bf16(torch.empty(16, 64, dtype=torch.bfloat16, device=META), meta_weight(5_000_000, 64))
    assert noted[0].programs == 70_000
    assert noted[1].programs > 65_535
    with pytest.raises(ValueError, match="accepted: 2147483647"):
        launch.launch(None, 2**31, {})


def meta_weight(outputs, inputs):
    return torch.empty(outputs, inputs, dtype=torch.bfloat16, device=META)


def test_sizes_beyond_the_kernels_are_errors():
    with launch.recording():
        with pytest.raises(ValueError, match="accepted: 1…16384"):
            ops.rmsnorm(torch.empty(1, 16385, device=META), torch.empty(16385, device=META), 1e-5)
        wide = 140_000
        q, wq = (torch.empty(1, wide, dtype=torch.int8, device=META) for _ in range(2))
        with pytest.raises(ValueError, match="INT32 sums are exact"):
            ops.linear_w8a8(q, torch.empty(1, device=META), wq, torch.empty(1, device=META))


def test_the_vendor_product_runs_at_sixteen_rows_only(monkeypatch):
    tile = {**tiles.linear_tile("linear_bf16", 64, 64, CPU), "engine": "cublas"}
    heights = []
    monkeypatch.setattr(torch, "mm", lambda a, b, out_dtype, out: heights.append((a.shape[0], out_dtype)))
    with tiles.forced("linear_bf16", tile), launch.recording() as noted:
        ops.linear_bf16(torch.empty(21, 64, dtype=torch.bfloat16, device=META), meta_weight(64, 64))
    assert heights == [(16, torch.float32)] * 2
    assert [one.kernel.__name__ for one in noted] == ["_finish"]
