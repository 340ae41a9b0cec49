"""A model's files → Checkpoint(config, tensors, tokenizer), without any model class.

A model is named by a folder, a Hugging Face id, or "embedded" (the real 135 M model that installs with this lab). Five
families share one decoder shape, llama, mistral, qwen2, qwen3 and openPangu, and differ in biases, head norms and
windows; `ModelConfig` holds just those differences. Tensors are read from safetensors shards on demand (memory-mapped).
Pickle checkpoints are refused: reading one runs its code.

What is lost: other architectures. The error names the families.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quasar_lab import storage
from quasar_lab.errors import CheckpointError
from quasar_lab.tokenizer import Tokenizer, load_tokenizer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "PanguEmbedded")

PARTS = {
    "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o_proj": ("self_attn.o_proj",),
    "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "down_proj": ("mlp.down_proj",),
}
"""The four projections of a layer, and the checkpoint's matrices fused into each (they share one input)."""


def projection_of(name: str) -> str:
    """The fused projection that a checkpoint's name ("v_proj", "up_proj", …) belongs to. Raises CheckpointError for
    other names."""
    for projection, parts in PARTS.items():
        if name == projection or any(part.endswith(f".{name}") for part in parts):
            return projection
    accepted = sorted({*PARTS, *(part.split(".")[1] for parts in PARTS.values() for part in parts)})
    raise CheckpointError(f"unknown projection {name!r}; accepted: {', '.join(accepted)}")


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of one decoder."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    context: int
    eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    window: int
    tied: bool
    qk_norm: bool
    eos_ids: tuple[int, ...]

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def projection_shapes(self) -> dict[str, tuple[int, int]]:
        """[N, K] of the four projections of a layer."""
        return {
            "qkv_proj": (self.qkv_width, self.hidden),
            "o_proj": (self.hidden, self.heads * self.head_dim),
            "gate_up_proj": (2 * self.mlp, self.hidden),
            "down_proj": (self.hidden, self.mlp),
        }

    @property
    def step_weights(self) -> int:
        """Weights of all products of one step: the projections of every layer and the head."""
        layer = sum(n * k for n, k in self.projection_shapes().values())
        return self.layers * layer + self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of the model, norms and biases left out (below 0.1 %)."""
        return self.step_weights + (0 if self.tied else self.vocab * self.hidden)


def parse_config(raw: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    """`config.json` (and `generation_config.json`) → ModelConfig. Raises CheckpointError on anything this decoder does
    not compute."""
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise CheckpointError(f"model family {family!r} is not supported; accepted: {', '.join(FAMILIES)}")
    try:
        heads, hidden = raw["num_attention_heads"], raw["hidden_size"]
        theta, scaling = _rope(raw)
        context, window = raw["max_position_embeddings"], 0
        if family == "mistral":
            window = raw.get("sliding_window") or 0
        elif raw.get("use_sliding_window"):
            # Qwen applies its window to some layers only; within the window all layers are plain.
            context = min(context, raw.get("sliding_window") or context)
        config = ModelConfig(
            family=family,
            hidden=hidden,
            layers=raw["num_hidden_layers"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or hidden // heads,
            mlp=raw["intermediate_size"],
            vocab=raw["vocab_size"],
            context=context,
            eps=raw["rms_norm_eps"],
            rope_theta=theta,
            rope_scaling=scaling,
            window=window,
            tied=bool(raw.get("tie_word_embeddings", False)),
            qk_norm=family == "qwen3",
            eos_ids=_eos_ids(raw, generation),
        )
    except KeyError as error:
        raise CheckpointError(f"config.json lacks {error}") from error
    if raw.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"activation {raw['hidden_act']!r} is not supported; accepted: silu")
    return config


def _rope(raw: dict[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling from either form: `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling`."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise CheckpointError("partial rotary embeddings are not supported; accepted: the whole head rotated")
    if kind == "default":
        return theta, None
    if kind == "llama3":
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        return theta, {key: rope[key] for key in keys}
    raise CheckpointError(f"rope type {kind!r} is not supported; accepted: default, llama3")


def _eos_ids(raw: dict[str, Any], generation: dict[str, Any] | None) -> tuple[int, ...]:
    ids: list[int] = []
    for source in (raw, generation or {}):
        value = source.get("eos_token_id")
        ids += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(ids))


class Checkpoint:
    """Config, tensors and tokenizer of one model folder.

    Raises CheckpointError when a file is missing, truncated or of a refused kind.
    """

    def __init__(self, folder: Path, name: str | None = None):
        self.folder = folder
        self.name = name or folder.name
        self.config = parse_config(
            _read_json(folder / "config.json"), _read_json(folder / "generation_config.json", missing={})
        )
        self._shards = self._index_shards()

    def _index_shards(self) -> dict[str, Path]:
        """Tensor name → shard. Opening a shard checks that its header and length agree."""
        paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            pickles = [*self.folder.glob("*.bin"), *self.folder.glob("*.pt"), *self.folder.glob("*.pth")]
            if pickles:
                raise CheckpointError(
                    f"{self.folder} holds only pickle weights ({pickles[0].name}); accepted: *.safetensors"
                )
            raise CheckpointError(f"{self.folder} holds no weights; accepted: *.safetensors")
        shards = {}
        for path in paths:
            try:
                with safe_open(path, framework="pt") as file:
                    shards.update(dict.fromkeys(file.keys(), path))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is truncated or corrupt: {error}") from error
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            absent = {shard for shard in _read_json(index)["weight_map"].values() if not (self.folder / shard).exists()}
            if absent:
                raise CheckpointError(f"{self.folder} lacks the shard {sorted(absent)[0]} that its index names")
        return shards

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over config and shards: the identity under which quantized copies are cached."""
        return storage.sha256_files([self.folder / "config.json", *sorted(set(self._shards.values()))])

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        return load_tokenizer(self.folder, self.config.family)

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor by its name in the files, as `dtype`. Raises CheckpointError when it is missing or unreadable."""
        if name not in self._shards:
            raise CheckpointError(f"{self.folder} lacks the tensor {name}")
        try:
            with safe_open(self._shards[name], framework="pt") as file:
                return file.get_tensor(name).to(dtype)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._shards[name]} cannot be read: {error}") from error

    def projection(self, layer: int, projection: str) -> tuple[Tensor, Tensor | None]:
        """Fused weight bf16 [N, K] and bias f32 [N] (None without) of one of `PARTS`."""
        names = [f"model.layers.{layer}.{part}" for part in PARTS[projection]]
        weight = torch.cat([self.tensor(f"{name}.weight", torch.bfloat16) for name in names])
        expected = self.config.projection_shapes()[projection]
        if tuple(weight.shape) != expected:
            raise CheckpointError(
                f"{projection} of layer {layer} is {list(weight.shape)}; config.json says {list(expected)}"
            )
        if not any(f"{name}.bias" in self for name in names):
            return weight, None
        return weight, torch.cat([self.tensor(f"{name}.bias", torch.float32) for name in names])

    def norm(self, name: str) -> Tensor:
        """A norm's gains, f32."""
        return self.tensor(f"{name}.weight", torch.float32)

    def embedding(self) -> Tensor:
        """bf16 [vocab, hidden]."""
        return self._table("model.embed_tokens.weight")

    def head(self) -> Tensor | None:
        """bf16 [vocab, hidden] of an untied head; None when the embedding serves."""
        if self.config.tied or "lm_head.weight" not in self:
            return None
        return self._table("lm_head.weight")

    def _table(self, name: str) -> Tensor:
        table, expected = self.tensor(name, torch.bfloat16), (self.config.vocab, self.config.hidden)
        if tuple(table.shape) != expected:
            raise CheckpointError(f"{name} is {list(table.shape)}; config.json says {list(expected)}")
        return table

    def names(self) -> Iterator[str]:
        """Names of all tensors in the files."""
        return iter(self._shards)


def _read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if not path.exists() and missing is not None:
        return missing
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; accepted: a folder with config.json and *.safetensors") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds {type(content).__name__}; accepted: a JSON object")
    return content


def open_checkpoint(model: str | Path = "embedded") -> Checkpoint:
    """The checkpoint named by "embedded", an existing folder, or a Hugging Face id "owner/name".

    Raises CheckpointError when it cannot be had.
    """
    from quasar_lab import embedded

    if str(model) in ("embedded", embedded.ID):
        return Checkpoint(embedded.converted_folder(), name=embedded.ID)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return Checkpoint(folder.resolve())
    if folder.is_absolute() or str(model).count("/") != 1 or str(model).startswith("."):
        raise CheckpointError(f'{model} is no folder here; accepted: "embedded", a folder, or a hub id "owner/name"')
    return Checkpoint(_download(str(model)), name=str(model))


def _download(model: str) -> Path:
    """Folder of a hub model in the hub's own cache, downloaded when missing: weights, config, tokenizer; never code."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    patterns = ["*.safetensors", "*.json", "tokenizer.model", "merges.txt", "vocab.txt"]
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no model {model!r} that you may read; accepted: owner/name, or a folder"
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{model} is not in the local hub cache and the hub cannot be reached; accepted: a folder, or a network"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise CheckpointError(f"{model} cannot be downloaded: {str(error).splitlines()[0]}") from error
