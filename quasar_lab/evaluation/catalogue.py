"""Models worth trying, with their sizes: what `quasar-lab models` lists before anything is downloaded.

Any other model of a supported family works by hub id or folder. Bytes follow from the shapes: BF16 is two bytes a
weight, W8A8 one byte and one FP32 scale per output channel. In memory is what a step reads and, apart from it, the
embedding table in BF16: a tied head is packed for its product, and so is held twice. Shapes: the models' own
config.json. Norms and biases (below 0.1 %) are left out.
"""

from dataclasses import dataclass
from typing import Any

from quasar_lab.models.checkpoint import ModelConfig
from quasar_lab.models.embedded import ID
from quasar_lab.quantization.rotation import rotation_matrix
from quasar_lab.support.errors import InputError
from quasar_lab.support.machine import memory_bytes


@dataclass(frozen=True)
class Entry:
    """id: what `--model` accepts."""

    id: str
    license: str
    source: str
    config: ModelConfig


def _config(
    family: str, hidden: int, layers: int, heads: int, kv: int, size: int, mlp: int, vocab: int, tied: bool
) -> ModelConfig:
    return ModelConfig(
        family, hidden, layers, heads, kv, size, mlp, vocab, 0, 1e-6, 1e4, None, 0, tied, family == "qwen3", ()
    )


HUB = "Hugging Face hub"
ENTRIES = (
    Entry(ID, "Apache-2.0", "embedded", _config("llama", 576, 30, 9, 3, 64, 1536, 49152, True)),
    Entry(
        "HuggingFaceTB/SmolLM2-360M-Instruct",
        "Apache-2.0",
        HUB,
        _config("llama", 960, 32, 15, 5, 64, 2560, 49152, True),
    ),
    Entry("Qwen/Qwen3-0.6B", "Apache-2.0", HUB, _config("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, True)),
    Entry("Qwen/Qwen2.5-1.5B-Instruct", "Apache-2.0", HUB, _config("qwen2", 1536, 28, 12, 2, 128, 8960, 151936, True)),
    Entry(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct",
        "Apache-2.0",
        HUB,
        _config("llama", 2048, 24, 32, 32, 64, 8192, 49152, True),
    ),
    Entry(
        "mistralai/Mistral-7B-Instruct-v0.3",
        "Apache-2.0",
        HUB,
        _config("mistral", 4096, 32, 32, 8, 128, 14336, 32768, False),
    ),
    Entry(
        "FreedomIntelligence/openPangu-Embedded-7B-V1.1",
        "openPangu Model License",
        HUB,
        _config("PanguEmbedded", 4096, 34, 32, 8, 128, 12800, 153376, False),
    ),
    Entry(
        "meta-llama/Llama-3.1-8B-Instruct",
        "Llama 3.1 Community",
        HUB,
        _config("llama", 4096, 32, 32, 8, 128, 14336, 128256, False),
    ),
    Entry("Qwen/Qwen3-8B", "Apache-2.0", HUB, _config("qwen3", 4096, 36, 32, 8, 128, 12288, 151936, False)),
)


def find(name: str) -> Entry:
    """The entry called `name`. Raises InputError on a name that is not in the list."""
    for entry in ENTRIES:
        if name == entry.id or (name == "embedded" and entry.source == "embedded"):
            return entry
    raise InputError(f"{name!r} is not in the list; accepted: embedded, {', '.join(entry.id for entry in ENTRIES)}")


def row(entry: Entry) -> dict[str, Any]:
    """One line of `quasar-lab models`. fits: both verifiers and 1 GiB for the rest within this machine's memory."""
    config = entry.config
    outputs = config.layers * sum(n for n, _ in config.projection_shapes().values()) + config.vocab
    table = config.vocab * config.hidden
    # Scales per output and the dense factors of the rotations; those of o_proj are folded away.
    beside = outputs + config.layers * (2 * _factor(config.hidden) + _factor(config.mlp)) + _factor(config.hidden)
    step_bf16, step_w8a8 = 2 * config.step_weights, config.step_weights + 4 * beside
    resident_bf16, resident_w8a8 = step_bf16 + 2 * table, step_w8a8 + 2 * table
    return {
        "id": entry.id,
        "family": config.family,
        "parameters": config.parameters,
        "license": entry.license,
        "source": entry.source,
        "resident_bytes_bf16": resident_bf16,
        "resident_bytes_w8a8": resident_w8a8,
        "step_bytes_bf16": step_bf16,
        "step_bytes_w8a8": step_w8a8,
        "fits": resident_bf16 + resident_w8a8 - 2 * table + 2**30 < memory_bytes(),
    }


def _factor(channels: int) -> int:
    """Numbers in the dense factor of a rotation of `channels`."""
    matrix = rotation_matrix(channels)
    return 0 if matrix is None else matrix.numel()


def rows() -> list[dict[str, Any]]:
    """The whole list, smallest first."""
    return [row(entry) for entry in ENTRIES]
