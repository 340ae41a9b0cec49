"""A model's files → Checkpoint(config, tensors, tokenizer), without any model class.

A model is named by a folder, a Hugging Face id, or "embedded" (the real 135 M model that installs with this lab). Five
families share one decoder shape, llama, mistral, qwen2, qwen3 and openPangu, and differ in biases, head norms and
windows; `ModelConfig` holds just those differences. Tensors are read from safetensors shards on demand (memory-mapped).
Pickle checkpoints are refused: reading one runs its code.

What is lost: other architectures. The error names the families.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quasar_lab.models.tokenizer import FILES as TOKENIZER_FILES
from quasar_lab.models.tokenizer import Tokenizer, load_tokenizer
from quasar_lab.support import storage
from quasar_lab.support.errors import CheckpointError
from quasar_lab.support.json_schema import (
    BOOLEAN,
    OBJECT,
    TEXT,
    Schema,
    fields,
    integer,
    list_of,
    mapping_of,
    number,
    one_of,
    optional,
    parse,
)

Key = tuple[int, str]
"""(layer, projection), the head being (number of layers, "lm_head")."""


FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "PanguEmbedded")

PARTS = {
    "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o_proj": ("self_attn.o_proj",),
    "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "down_proj": ("mlp.down_proj",),
}
"""The four projections of a layer, and the checkpoint's matrices fused into each (they share one input)."""

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

CONTEXT = integer(1, 2**21)
THETA = number(1, 1e12)
ROPE = fields({"rope_type?": TEXT, "type?": TEXT, "rope_theta?": THETA, "partial_rotary_factor?": optional(number())})
LLAMA3 = {
    "factor": number(1, 1e6),
    "low_freq_factor": number(1e-6, 1e6),
    "high_freq_factor": number(1e-6, 1e6),
    "original_max_position_embeddings": CONTEXT,
}
CONFIG = fields(
    {
        "model_type": one_of(*FAMILIES),
        "hidden_size": integer(1, 2**17),
        "num_hidden_layers": integer(1, 1024),
        "num_attention_heads": integer(1, 1024),
        "num_key_value_heads?": optional(integer(1, 1024)),
        "head_dim?": optional(integer(2, 1024)),
        "intermediate_size": integer(1, 2**20),
        "vocab_size": integer(1, 2**22),
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": number(1e-30, 1),
        "hidden_act?": one_of("silu"),
        "tie_word_embeddings?": optional(BOOLEAN),
        "use_sliding_window?": optional(BOOLEAN),
        "sliding_window?": optional(integer(0, 2**31 - 1)),
        "rope_theta?": THETA,
        "rope_parameters?": optional(ROPE),
        "rope_scaling?": optional(ROPE),
        "partial_rotary_factor?": optional(number()),
    }
)
"""What config.json must say. The bounds lie far outside every model there is; within them nothing overflows."""

INDEX = fields({"weight_map": mapping_of(TEXT)})


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

    def part_rows(self) -> dict[str, tuple[int, ...]]:
        """N of each matrix fused into a projection, in the order of `PARTS`."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv_proj": (queries, keys, keys),
            "o_proj": (self.hidden,),
            "gate_up_proj": (self.mlp, self.mlp),
            "down_proj": (self.hidden,),
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
    _check(CONFIG, raw, "config.json")
    if raw.get("quantization_config") is not None:
        raise CheckpointError("config.json has a quantization_config; accepted: weights in BF16, FP16 or FP32")
    family, heads, hidden = raw["model_type"], raw["num_attention_heads"], raw["hidden_size"]
    kv_heads, head_dim = raw.get("num_key_value_heads") or heads, raw.get("head_dim") or hidden // heads
    if heads % kv_heads:
        raise CheckpointError(f"config.json has {heads} heads for {kv_heads} KV heads; accepted: a multiple of them")
    if head_dim % 2 or not head_dim:
        raise CheckpointError(f"config.json gives heads of size {head_dim}; accepted: an even size")
    theta, scaling = _rope(raw)
    context, window = raw["max_position_embeddings"], 0
    if family == "mistral":
        window = raw.get("sliding_window") or 0
    elif raw.get("use_sliding_window"):
        # Qwen applies its window to some layers only; within the window all layers are plain.
        context = min(context, raw.get("sliding_window") or context)
    return ModelConfig(
        family=family,
        hidden=hidden,
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=raw["intermediate_size"],
        vocab=raw["vocab_size"],
        context=context,
        eps=raw["rms_norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
        window=window,
        tied=bool(raw.get("tie_word_embeddings")),
        qk_norm=family == "qwen3",
        eos_ids=_eos_ids(raw, generation or {}),
    )


def _check(schema: Schema, value: Any, where: str) -> None:
    fault = schema(value, "")
    if fault:
        raise CheckpointError(f"{where}: {fault}")


def _rope(raw: dict[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling from either form: `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling`."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor")) not in (None, 1.0):
        raise CheckpointError("partial rotary embeddings are not supported; accepted: the whole head rotated")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise CheckpointError(f"rope type {kind!r} is not supported; accepted: default, llama3")
    _check(fields(LLAMA3), rope, "rope type llama3 in config.json")
    if rope["low_freq_factor"] >= rope["high_freq_factor"]:
        raise CheckpointError("rope type llama3 in config.json: accepted: a low_freq_factor below high_freq_factor")
    return theta, {key: rope[key] for key in LLAMA3}


def _eos_ids(raw: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    ids: list[int] = []
    for where, source in (("config.json", raw), ("generation_config.json", generation)):
        value = source.get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        _check(fields({"eos_token_id": list_of(integer(0, raw["vocab_size"] - 1))}), {"eos_token_id": found}, where)
        ids += found
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
        """Tensor name → shard, as the index says where there is one. Opening a shard checks that its header and length
        agree."""
        files = sorted(self.folder.glob("*.safetensors"))
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            listed = _read_json(index)
            _check(INDEX, listed, str(index))
            strays = sorted(set(listed["weight_map"].values()) - {path.name for path in files})
            if strays:
                raise CheckpointError(f"{self.folder} lacks the shard {strays[0]} that its index names")
            shards = {name: self.folder / shard for name, shard in listed["weight_map"].items()}
            held = {path: _tensor_names(path) for path in set(shards.values())}
            lost = sorted(name for name, path in shards.items() if name not in held[path])
            if lost:
                raise CheckpointError(f"{shards[lost[0]]} lacks the tensor {lost[0]} that {index.name} places there")
            return shards
        whole = self.folder / "model.safetensors"
        if not files:
            pickles = [*self.folder.glob("*.bin"), *self.folder.glob("*.pt"), *self.folder.glob("*.pth")]
            kind = f"only pickle weights ({pickles[0].name})" if pickles else "no weights"
            raise CheckpointError(f"{self.folder} holds {kind}; accepted: *.safetensors")
        return {name: path for path in ([whole] if whole in files else files) for name in _tensor_names(path)}

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over config, weights and tokenizer (it decides the ids of a calibration text): the identity under
        which quantized copies are cached."""
        others = [self.folder / name for name in ("config.json", *TOKENIZER_FILES)]
        return storage.sha256_files([*filter(Path.is_file, others), *sorted(set(self._shards.values()))])

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        return load_tokenizer(self.folder, self.config.family)

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> Tensor:
        """One tensor by its name in the files, as `dtype`. Raises CheckpointError when it is missing or unreadable, not
        of a plain floating type, or not of the `shape` that config.json says."""
        if name not in self._shards:
            raise CheckpointError(f"{self.folder} lacks the tensor {name}")
        try:
            with safe_open(self._shards[name], framework="pt") as file:
                found = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._shards[name]} cannot be read: {error}") from error
        if found.dtype not in DTYPES:
            raise CheckpointError(f"{name} is {_word(found.dtype)}; accepted: {', '.join(map(_word, DTYPES))}")
        if shape is not None and tuple(found.shape) != shape:
            raise CheckpointError(f"{name} is {list(found.shape)}; config.json says {list(shape)}")
        return found.to(dtype)

    def projection(self, layer: int, projection: str) -> tuple[Tensor, Tensor | None]:
        """Fused weight bf16 [N, K] and bias f32 [N] (None without) of one of `PARTS`."""
        names = [f"model.layers.{layer}.{part}" for part in PARTS[projection]]
        columns = self.config.projection_shapes()[projection][1]
        parts = list(zip(names, self.config.part_rows()[projection], strict=True))
        weight = torch.cat([self.tensor(f"{name}.weight", torch.bfloat16, (rows, columns)) for name, rows in parts])
        if not any(f"{name}.bias" in self for name in names):
            return weight, None
        return weight, torch.cat([self.tensor(f"{name}.bias", torch.float32, (rows,)) for name, rows in parts])

    def norm(self, name: str) -> Tensor:
        """A norm's gains, f32: [head_dim] for those of queries and keys, else [hidden]."""
        per_head = name.endswith(("q_norm", "k_norm"))
        size = self.config.head_dim if per_head else self.config.hidden
        return self.tensor(f"{name}.weight", torch.float32, (size,))

    def embedding(self) -> Tensor:
        """bf16 [vocab, hidden]."""
        return self._table("model.embed_tokens.weight")

    def head(self) -> Tensor | None:
        """bf16 [vocab, hidden] of an untied head; None when the embedding serves."""
        return None if self.config.tied else self._table("lm_head.weight")

    def _table(self, name: str) -> Tensor:
        return self.tensor(name, torch.bfloat16, (self.config.vocab, self.config.hidden))

    def names(self) -> Iterator[str]:
        """Names of all tensors in the files."""
        return iter(self._shards)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_names(shard: Path) -> set[str]:
    try:
        with safe_open(shard, framework="pt") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{shard} is truncated or corrupt: {error}") from error


def _read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if not path.exists() and missing is not None:
        return missing
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; accepted: a folder with config.json and *.safetensors") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    _check(OBJECT, content, str(path))
    return content


def open_checkpoint(model: str | Path = "embedded") -> Checkpoint:
    """The checkpoint named by "embedded", an existing folder, or a Hugging Face id "owner/name".

    Raises CheckpointError when it cannot be had.
    """
    from quasar_lab.models import embedded

    name = str(model)
    if name in ("embedded", embedded.ID):
        return Checkpoint(embedded.converted_folder(), name=embedded.ID)
    folder = _local_folder(name)
    if folder is not None:
        return Checkpoint(folder)
    if name.count("/") != 1 or name.startswith(("/", ".", "~")) or len(name) > 200:
        shown = name if len(name) <= 200 else f"{name[:200]}…"
        raise CheckpointError(f'{shown} is no folder here; accepted: "embedded", a folder, or a hub id "owner/name"')
    return Checkpoint(_download(name), name=name)


def _local_folder(name: str) -> Path | None:
    try:
        folder = Path(name).expanduser()
        return folder.resolve() if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # a name too long, a user who is not there, a zero byte
        return None


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


def weight_of(checkpoint: Checkpoint, key: Key) -> Tensor:
    """W of a linear, BF16 [N, K]; of the head where it is tied, the embedding."""
    if key[1] != "lm_head":
        return checkpoint.projection(*key)[0]
    head = checkpoint.head()
    return checkpoint.embedding() if head is None else head


def linears(config: ModelConfig) -> Iterator[Key]:
    """Every linear in the order a pass uses them, the head last."""
    yield from ((layer, part) for layer in range(config.layers) for part in PARTS)
    yield config.layers, "lm_head"
