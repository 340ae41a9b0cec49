"""Which file of a model's folder holds which tensor.

The index file decides where there is one, then the file `model.safetensors`, then all weight files that are there.
"""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from quasar_lab.models.model_config import require_schema
from quasar_lab.support.errors import CheckpointError
from quasar_lab.support.json_schema import OBJECT, TEXT, fields, mapping_of, parse
from quasar_lab.support.result import Json

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
"""The one file of a model that is not in shards."""
LISTED = fields({"weight_map": mapping_of(TEXT)})
"""What the index must say: tensor name → file name."""


def shards_of(folder: Path) -> dict[str, Path]:
    """Tensor name → shard, as the index says where there is one. Opening a shard checks that its header and length
    agree."""
    files = sorted(folder.glob("*.safetensors"))
    if (folder / INDEX).exists():
        return _indexed_shards(folder, files)
    if not files:
        pickles = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        kind = f"only pickle weights ({pickles[0].name})" if pickles else "no weights"
        raise CheckpointError(f"{folder} holds {kind}; accepted: *.safetensors")
    whole = folder / WHOLE
    return {name: path for path in ([whole] if whole in files else files) for name in _tensor_names(path)}


def weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor name → file name as the index says; None without an index."""
    index = folder / INDEX
    if not index.exists():
        return None
    listed = read_json(index)
    require_schema(LISTED, listed, str(index))
    return listed["weight_map"]


def _indexed_shards(folder: Path, files: list[Path]) -> dict[str, Path]:
    """Tensor name → shard by the index file. Raises CheckpointError unless every shard is there and holds what the
    index places there."""
    listed = weight_map(folder) or {}
    strays = sorted(set(listed.values()) - {path.name for path in files})
    if strays:
        raise CheckpointError(f"{folder} lacks the shard {strays[0]} that its index names")
    shards = {name: folder / shard for name, shard in listed.items()}
    held = {path: _tensor_names(path) for path in set(shards.values())}
    lost = sorted(name for name, path in shards.items() if name not in held[path])
    if lost:
        raise CheckpointError(f"{shards[lost[0]]} lacks the tensor {lost[0]} that {INDEX} places there")
    return shards


def _tensor_names(shard: Path) -> set[str]:
    try:
        with safe_open(shard, framework="pt") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{shard} is truncated or corrupt: {error}") from error


def read_json(path: Path, missing: Json | None = None) -> Json:
    """The JSON object in a file; `missing`, where it is given, stands for a file that is not there."""
    if not path.exists() and missing is not None:
        return missing
    try:
        content = parse(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; accepted: a folder with config.json and *.safetensors") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    require_schema(OBJECT, content, str(path))
    return content
