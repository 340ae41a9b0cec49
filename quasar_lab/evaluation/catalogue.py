"""Models worth trying, with their sizes: what `quasar-lab models` lists before anything is downloaded.

Any other model of a supported family works by hub id or folder.

## Choice

Bytes follow from the shapes, which are those of the models' own config.json. BF16 is two bytes a weight. W8A8 is one
byte a weight, one FP32 scale per output channel, and the dense factors of the rotations. A model in memory is what a
step reads and, apart from it, the embedding table in BF16. A tied head is packed for its product, and so is held twice.

## What is lost

Norms and biases are left out, below 0.1 % of the bytes.
"""

from dataclasses import dataclass

from quasar_lab.models.embedded import ID
from quasar_lab.models.families import FAMILIES
from quasar_lab.models.model_config import ModelConfig
from quasar_lab.quantization.rotation import rotation_matrix
from quasar_lab.support.errors import InputError
from quasar_lab.support.machine import memory_bytes
from quasar_lab.support.result import Result

HUB = "Hugging Face hub"
EMBEDDED = "embedded"
APACHE = "Apache-2.0"


@dataclass(frozen=True)
class ListedModel:
    """A model of the list."""

    id: str
    """What `--model` accepts."""
    license: str
    """Under which terms its weights are given away."""
    source: str
    """Where it comes from: `HUB` or `EMBEDDED`."""
    config: ModelConfig
    """Its shapes. Constants that change no size are not its own."""


@dataclass(frozen=True)
class CatalogueRow(Result):
    """One line of `quasar-lab models`."""

    id: str
    """What `--model` accepts."""
    family: str
    """`model_type` of its family."""
    parameters: int
    """Number of weights."""
    license: str
    source: str
    resident_bytes_bf16: int
    """Bytes in memory as the BF16 verifier."""
    resident_bytes_w8a8: int
    """Bytes in memory as a W8A8 verifier."""
    step_bytes_bf16: int
    """Bytes of weights that one step of the BF16 verifier reads."""
    step_bytes_w8a8: int
    """Bytes of weights that one step of a W8A8 verifier reads."""
    fits: bool
    """Whether both verifiers and 1 GiB for the rest are within this machine's memory."""


def _config(
    family: str,
    *,
    hidden: int,
    layers: int,
    heads: tuple[int, int],
    head_dim: int,
    mlp: int,
    vocab: int,
    tied: bool = False,
) -> ModelConfig:
    """A config that is right in everything that decides sizes. heads: of queries, and of keys and values."""
    return ModelConfig(
        family=family,
        hidden=hidden,
        layers=layers,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim,
        mlp=mlp,
        vocab=vocab,
        context=0,
        eps=1e-6,
        rope_theta=1e4,
        rope_scaling=None,
        window=0,
        tied=tied,
        qk_norm=FAMILIES[family].head_norms,
        eos_ids=(),
    )


ENTRIES = (
    ListedModel(
        ID,
        APACHE,
        EMBEDDED,
        _config("llama", hidden=576, layers=30, heads=(9, 3), head_dim=64, mlp=1536, vocab=49152, tied=True),
    ),
    ListedModel(
        "HuggingFaceTB/SmolLM2-360M-Instruct",
        APACHE,
        HUB,
        _config("llama", hidden=960, layers=32, heads=(15, 5), head_dim=64, mlp=2560, vocab=49152, tied=True),
    ),
    ListedModel(
        "Qwen/Qwen3-0.6B",
        APACHE,
        HUB,
        _config("qwen3", hidden=1024, layers=28, heads=(16, 8), head_dim=128, mlp=3072, vocab=151936, tied=True),
    ),
    ListedModel(
        "Qwen/Qwen2.5-1.5B-Instruct",
        APACHE,
        HUB,
        _config("qwen2", hidden=1536, layers=28, heads=(12, 2), head_dim=128, mlp=8960, vocab=151936, tied=True),
    ),
    ListedModel(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct",
        APACHE,
        HUB,
        _config("llama", hidden=2048, layers=24, heads=(32, 32), head_dim=64, mlp=8192, vocab=49152, tied=True),
    ),
    ListedModel(
        "mistralai/Mistral-7B-Instruct-v0.3",
        APACHE,
        HUB,
        _config("mistral", hidden=4096, layers=32, heads=(32, 8), head_dim=128, mlp=14336, vocab=32768),
    ),
    ListedModel(
        "FreedomIntelligence/openPangu-Embedded-7B-V1.1",
        "openPangu Model License",
        HUB,
        _config("PanguEmbedded", hidden=4096, layers=34, heads=(32, 8), head_dim=128, mlp=12800, vocab=153376),
    ),
    ListedModel(
        "meta-llama/Llama-3.1-8B-Instruct",
        "Llama 3.1 Community",
        HUB,
        _config("llama", hidden=4096, layers=32, heads=(32, 8), head_dim=128, mlp=14336, vocab=128256),
    ),
    ListedModel(
        "Qwen/Qwen3-8B",
        APACHE,
        HUB,
        _config("qwen3", hidden=4096, layers=36, heads=(32, 8), head_dim=128, mlp=12288, vocab=151936),
    ),
)
"""The list, smallest first."""


def accepted_names() -> tuple[str, ...]:
    """What `find` accepts, as people choose from it: "embedded", then the hub ids."""
    return tuple("embedded" if entry.source == EMBEDDED else entry.id for entry in ENTRIES)


def find(name: str) -> ListedModel:
    """The model called `name`. Raises InputError on a name that is not in the list."""
    for entry in ENTRIES:
        if name == entry.id or (name == "embedded" and entry.source == EMBEDDED):
            return entry
    raise InputError(f"{name!r} is not in the list; accepted: embedded, {', '.join(entry.id for entry in ENTRIES)}")


def row(entry: ListedModel) -> CatalogueRow:
    """One line of `quasar-lab models`."""
    config = entry.config
    table = 2 * config.vocab * config.hidden
    step_bf16 = 2 * config.step_weights
    step_w8a8 = config.step_weights + 4 * (_scales(config) + _rotation_numbers(config))
    return CatalogueRow(
        id=entry.id,
        family=config.family,
        parameters=config.parameters,
        license=entry.license,
        source=entry.source,
        resident_bytes_bf16=step_bf16 + table,
        resident_bytes_w8a8=step_w8a8 + table,
        step_bytes_bf16=step_bf16,
        step_bytes_w8a8=step_w8a8,
        fits=step_bf16 + step_w8a8 + table + 2**30 < memory_bytes(),  # both share one table
    )


def _scales(config: ModelConfig) -> int:
    """Scales of a W8A8 model: one per output channel of every linear."""
    return config.layers * sum(n for n, _ in config.projection_shapes().values()) + config.vocab


def _rotation_numbers(config: ModelConfig) -> int:
    """Numbers in the dense factors of the rotations; those of o_proj are folded away."""
    layer = 2 * _factor(config.hidden) + _factor(config.mlp)
    return config.layers * layer + _factor(config.hidden)


def _factor(channels: int) -> int:
    """Numbers in the dense factor of a rotation of `channels`."""
    matrix = rotation_matrix(channels)
    return 0 if matrix is None else matrix.numel()


def rows() -> list[CatalogueRow]:
    """The whole list, smallest first."""
    return [row(entry) for entry in ENTRIES]
