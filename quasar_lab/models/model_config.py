"""config.json → ModelConfig: the shapes and constants of one decoder.

## Idea

`ModelConfig` holds what the decoder, the quantization and the catalogue need to know about a model, under names of our
own. `parse_config` reads it from `config.json` and `generation_config.json`.

## Choice

`CONFIG` is the schema of `config.json`. Every value is compared with it before it is used, so that a damaged or foreign
file gives one sentence and no traceback. Both forms of rotary settings are read: `rope_parameters` of transformers 5,
and `rope_theta` with `rope_scaling` of older files.

## What is lost

Whatever this decoder does not compute is refused: other families, rope types beside default and llama3, partial rotary
embeddings, quantized weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from quasar_lab.models.families import FAMILIES
from quasar_lab.support.errors import CheckpointError
from quasar_lab.support.json_schema import (
    BOOLEAN,
    TEXT,
    Schema,
    fields,
    integer,
    list_of,
    number,
    one_of,
    optional,
)
from quasar_lab.support.result import Json

Key = tuple[int, str]
"""The key of one linear: (layer, projection). The head is (number of layers, "lm_head")."""

PARTS = {
    "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o_proj": ("self_attn.o_proj",),
    "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "down_proj": ("mlp.down_proj",),
}
"""The four projections of a layer, and the checkpoint's matrices fused into each (they share one input)."""

CONTEXT = integer(1, 2**24)
"""A count of positions: FP32, in which angles are computed, holds each up to here."""
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


@dataclass(frozen=True)
class RopeScaling:
    """Rope type llama3: how slow rotations are slowed further, for a context longer than the first training's."""

    factor: float
    """By how much wavelengths beyond the original context are stretched."""
    low_freq_factor: float
    """Wavelengths above original context / low_freq_factor are stretched in full."""
    high_freq_factor: float
    """Wavelengths below original context / high_freq_factor are left as they are."""
    original_max_position_embeddings: int
    """The context of the first training, in tokens."""


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of one decoder."""

    family: str
    """`model_type` of one of `families.FAMILIES`."""
    hidden: int
    """Width of the residual stream."""
    layers: int
    """Number of blocks."""
    heads: int
    """Query heads of a layer."""
    kv_heads: int
    """Key and value heads of a layer. Each serves heads / kv_heads query heads."""
    head_dim: int
    """Width of one head, D in shapes."""
    mlp: int
    """Width of the MLP: inputs of down_proj."""
    vocab: int
    """Number of token ids."""
    context: int
    """Number of positions that the decoder accepts."""
    eps: float
    """Added to the mean square in every RMS norm."""
    rope_theta: float
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None
    """Rope type llama3; None for plain rotations."""
    window: int
    """How many of the latest positions a token attends to; 0 for all."""
    tied: bool
    """Whether the head is the embedding table."""
    qk_norm: bool
    """Whether queries and keys pass through an RMS norm per head."""
    eos_ids: tuple[int, ...]
    """Token ids that end a text."""

    @property
    def qkv_width(self) -> int:
        """Outputs of qkv_proj: queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def value_rows(self) -> slice:
        """The rows of qkv_proj that give the values."""
        return slice((self.heads + self.kv_heads) * self.head_dim, None)

    @property
    def up_rows(self) -> slice:
        """The rows of gate_up_proj that give `up`."""
        return slice(self.mlp, None)

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
        queries = self.heads * self.head_dim
        keys = self.kv_heads * self.head_dim
        return {
            "qkv_proj": (queries, keys, keys),
            "o_proj": (self.hidden,),
            "gate_up_proj": (self.mlp, self.mlp),
            "down_proj": (self.hidden,),
        }

    def linear_keys(self) -> Iterator[Key]:
        """The key of every linear in the order that a pass uses them, the head last."""
        yield from ((layer, projection) for layer in range(self.layers) for projection in PARTS)
        yield self.layers, "lm_head"

    def linear_shape(self, key: Key) -> tuple[int, int]:
        """[N, K] of one linear."""
        return (self.vocab, self.hidden) if key[1] == "lm_head" else self.projection_shapes()[key[1]]

    @property
    def step_weights(self) -> int:
        """Weights of all products of one step: the projections of every layer and the head."""
        layer = sum(n * k for n, k in self.projection_shapes().values())
        return self.layers * layer + self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of the model, norms and biases left out (below 0.1 %)."""
        return self.step_weights + (0 if self.tied else self.vocab * self.hidden)


def linear_name(key: Key) -> str:
    """What a linear is called in saved models: "layers.3.o_proj", or "lm_head"."""
    layer, projection = key
    return projection if projection == "lm_head" else f"layers.{layer}.{projection}"


def projection_of(name: str) -> str:
    """The fused projection that a checkpoint's name ("v_proj", "up_proj", …) belongs to. Raises CheckpointError for
    other names."""
    for projection, parts in PARTS.items():
        if name == projection or any(part.endswith(f".{name}") for part in parts):
            return projection
    accepted = sorted({*PARTS, *(part.split(".")[1] for parts in PARTS.values() for part in parts)})
    raise CheckpointError(f"unknown projection {name!r}; accepted: {', '.join(accepted)}")


def parse_config(raw: Json, generation: Json | None = None) -> ModelConfig:
    """`config.json` (and `generation_config.json`) → ModelConfig. Raises CheckpointError on anything that this decoder
    does not compute."""
    require_schema(CONFIG, raw, "config.json")
    if raw.get("quantization_config") is not None:
        raise CheckpointError("config.json has a quantization_config; accepted: weights in BF16, FP16 or FP32")
    family = FAMILIES[raw["model_type"]]
    heads, kv_heads, head_dim = _heads(raw)
    theta, scaling = _rope(raw)
    context, window = family.window_rule(raw)
    return ModelConfig(
        family=family.model_type,
        hidden=raw["hidden_size"],
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
        qk_norm=family.head_norms,
        eos_ids=_eos_ids(raw, generation or {}),
    )


def require_schema(schema: Schema, value: object, where: str) -> None:
    """Raises CheckpointError, saying where and what, unless `value` follows the schema."""
    fault = schema(value, "")
    if fault:
        raise CheckpointError(f"{where}: {fault}")


def _heads(raw: Json) -> tuple[int, int, int]:
    """Query heads, KV heads and the size of one head."""
    heads = raw["num_attention_heads"]
    kv_heads = raw.get("num_key_value_heads") or heads
    head_dim = raw.get("head_dim") or raw["hidden_size"] // heads
    if heads % kv_heads:
        raise CheckpointError(f"config.json has {heads} heads for {kv_heads} KV heads; accepted: a multiple of them")
    if head_dim % 2 or not head_dim:
        raise CheckpointError(f"config.json gives heads of size {head_dim}; accepted: an even size")
    return heads, kv_heads, head_dim


def _rope(raw: Json) -> tuple[float, RopeScaling | None]:
    """Base and scaling from either form: `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling`."""
    rope: Json = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta: float = {"rope_theta": 10000.0, **raw, **rope}["rope_theta"]
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor")) not in (None, 1.0):
        raise CheckpointError("partial rotary embeddings are not supported; accepted: the whole head rotated")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise CheckpointError(f"rope type {kind!r} is not supported; accepted: default, llama3")
    require_schema(fields(LLAMA3), rope, "rope type llama3 in config.json")
    if rope["low_freq_factor"] >= rope["high_freq_factor"]:
        raise CheckpointError("rope type llama3 in config.json: accepted: a low_freq_factor below high_freq_factor")
    return theta, RopeScaling(**{key: rope[key] for key in LLAMA3})


def _eos_ids(raw: Json, generation: Json) -> tuple[int, ...]:
    """The ids of both files, each once, in the order found."""
    ids: list[int] = []
    for where, source in (("config.json", raw), ("generation_config.json", generation)):
        value = source.get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        schema = fields({"eos_token_id": list_of(integer(0, raw["vocab_size"] - 1))})
        require_schema(schema, {"eos_token_id": found}, where)
        ids += found
    return tuple(dict.fromkeys(ids))
