"""A model's files as a Checkpoint: config, tensors and tokenizer, without any model class.

## Idea

A model is named by a folder, a Hugging Face id, or "embedded", the real 135 M model that installs with this lab
(`sources`). `Checkpoint` opens the folder, reads its configuration (`model_config`) and gives its tensors by name.

## Choice

Tensors are read from safetensors shards on demand, memory-mapped. Every tensor is compared with the shape that
config.json promises, because kernels trust shapes. Pickle checkpoints are refused, since reading one runs its code.

## What is lost

Models outside the supported `families`, and weights that are already quantized.
"""

import re
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quasar_lab.models.generation_defaults import FILE as GENERATION_FILE
from quasar_lab.models.generation_defaults import SETTINGS as GENERATION_SETTINGS
from quasar_lab.models.generation_defaults import GenerationDefaults, read_defaults
from quasar_lab.models.model_config import PARTS, Key, ModelConfig, parse_config, require_schema
from quasar_lab.models.shards import read_json, shards_of
from quasar_lab.models.sources import model_folder
from quasar_lab.models.tokenizer import FILES as TOKENIZER_FILES
from quasar_lab.models.tokenizer import Tokenizer, load_tokenizer
from quasar_lab.support import storage
from quasar_lab.support.errors import CheckpointError

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Types of weights that are read. Each is rounded to BF16 where the decoder computes with BF16."""

HEAD = "lm_head.weight"
BLOCK = re.compile(r"model\.layers\.(\d+)\.(.+)")
UNUSED = "self_attn.rotary_emb.inv_freq"
"""A tensor of a block in older files, which follows from config.json."""


class Checkpoint:
    """Config, tensors and tokenizer of one model folder.

    Raises CheckpointError when a file is missing, truncated or of a refused kind.
    """

    def __init__(self, folder: Path, name: str | None = None):
        self.folder = folder
        self.name = name or folder.name
        generation = read_json(folder / GENERATION_FILE, missing={})
        self.config: ModelConfig = parse_config(read_json(folder / "config.json"), generation)
        require_schema(GENERATION_SETTINGS, generation, str(folder / GENERATION_FILE))
        self.generation_defaults: GenerationDefaults = read_defaults(generation)
        self._shards = shards_of(folder)
        self._require_known_blocks()

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over config, weights and tokenizer (it decides the ids of a calibration text): the identity under
        which quantized copies are cached."""
        others = [self.folder / name for name in ("config.json", *TOKENIZER_FILES)]
        return storage.sha256_files([*filter(Path.is_file, others), *sorted(set(self._shards.values()))])

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The folder's tokenizer; None where it has none (then prompts are token ids)."""
        return load_tokenizer(self.folder, self.config.family)

    def __contains__(self, name: str) -> bool:
        """Whether the files hold a tensor of this name."""
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

    def _require_known_blocks(self) -> None:
        """Raises CheckpointError when a block holds a tensor that the decoder would leave out: a bias of a norm, a norm
        of queries in a family that has none, weights of an adapter. The file says that the model computes with it."""
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["self_attn.q_norm", "self_attn.k_norm"] if self.config.qk_norm else []
        matrices = [part for parts in PARTS.values() for part in parts]
        known = {f"{name}.weight" for name in norms + matrices} | {f"{name}.bias" for name in matrices} | {UNUSED}
        for name in sorted(self._shards):
            found = BLOCK.fullmatch(name)
            if found and int(found[1]) < self.config.layers and found[2] not in known:
                raise CheckpointError(
                    f"{self._shards[name]} holds {name}, which a decoder of the family {self.config.family} does not "
                    f"compute with; accepted: in a block {', '.join(sorted(known - {UNUSED}))}"
                )

    def projection(self, layer: int, projection: str) -> tuple[Tensor, Tensor | None]:
        """Fused weight bf16 [N, K] and bias f32 [N] (None without) of one of `PARTS`."""
        names = [f"model.layers.{layer}.{part}" for part in PARTS[projection]]
        columns = self.config.projection_shapes()[projection][1]
        parts = list(zip(names, self.config.part_rows()[projection], strict=True))
        weight = torch.cat([self.tensor(f"{name}.weight", torch.bfloat16, (rows, columns)) for name, rows in parts])
        if not any(f"{name}.bias" in self for name in names):
            return weight, None
        return weight, torch.cat([self.tensor(f"{name}.bias", torch.float32, (rows,)) for name, rows in parts])

    def linear_weight(self, key: Key) -> Tensor:
        """W bf16 [N, K] of any linear; of a tied head, the embedding."""
        if key[1] != "lm_head":
            return self.projection(*key)[0]
        head = self.head()
        return self.embedding() if head is None else head

    def norm(self, name: str) -> Tensor:
        """A norm's gains, f32: [head_dim] for those of queries and keys, else [hidden]."""
        per_head = name.endswith(("q_norm", "k_norm"))
        size = self.config.head_dim if per_head else self.config.hidden
        return self.tensor(f"{name}.weight", torch.float32, (size,))

    def embedding(self) -> Tensor:
        """bf16 [vocab, hidden]."""
        return self._table("model.embed_tokens.weight")

    def head(self) -> Tensor | None:
        """bf16 [vocab, hidden] of the head; None when the embedding serves. Where the files hold a head, they decide,
        whatever config.json says: one that equals the embedding is shared, another is used."""
        if self.config.tied and HEAD not in self:
            return None
        head, embedding = self._table(HEAD), self.embedding()
        return None if torch.equal(head[:1], embedding[:1]) and torch.equal(head, embedding) else head

    def _table(self, name: str) -> Tensor:
        return self.tensor(name, torch.bfloat16, (self.config.vocab, self.config.hidden))


def open_checkpoint(model: str | Path = "embedded") -> Checkpoint:
    """The checkpoint named by "embedded", an existing folder, or a Hugging Face id "owner/name".

    Raises CheckpointError when it cannot be had.
    """
    folder, name = model_folder(str(model))
    return Checkpoint(folder, name)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
