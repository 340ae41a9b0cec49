"""Where a model's files are: the embedded model, a folder on this machine, or a Hugging Face id.

Weights, configuration and tokenizer files are downloaded, and code never is. A hub model stays in the hub's own cache,
which other programs share.
"""

from pathlib import Path

from quasar_lab.models import embedded
from quasar_lab.support.errors import CheckpointError

DOWNLOADED = ("*.safetensors", "*.json", "tokenizer.model", "merges.txt", "vocab.txt")
"""The files of a hub model that are wanted here."""


def model_folder(model: str) -> tuple[Path, str]:
    """The folder of a model, and the name under which results show it; converts or downloads it when needed.

    Raises CheckpointError when it cannot be had.
    """
    if model in ("embedded", embedded.ID):
        return embedded.converted_folder(), embedded.ID
    folder = _local_folder(model)
    if folder is not None:
        return folder, folder.name
    if model.count("/") != 1 or model.startswith(("/", ".", "~")) or len(model) > 200:
        shown = model if len(model) <= 200 else f"{model[:200]}…"
        raise CheckpointError(f'{shown} is no folder here; accepted: "embedded", a folder, or a hub id "owner/name"')
    return _download(model), model


def _local_folder(name: str) -> Path | None:
    try:
        folder = Path(name).expanduser()
        return folder.resolve() if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # a name too long, a user who is not there, a zero byte
        return None


def _download(model: str) -> Path:
    """The folder of a hub model in the hub's own cache, downloaded when missing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=list(DOWNLOADED)))
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
