"""Where a model's files are: the embedded model, a folder on this machine, or a Hugging Face id.

Of a hub model the configuration, the tokenizer's files and the weights that its index names are downloaded, nothing
else: no second copy of the weights in another format, no checkpoints of its training, and no code, ever. It stays in
the hub's own cache, which other programs share.
"""

import glob
import json
from functools import partial
from pathlib import Path

from quasar_lab.models import embedded
from quasar_lab.models.model_config import parse_config
from quasar_lab.models.shards import INDEX, WHOLE, read_json, weight_map
from quasar_lab.models.tokenizer import FILES as TOKENIZER_FILES
from quasar_lab.support.errors import CheckpointError
from quasar_lab.support.progress import announce

SETTINGS = (
    "config.json",
    "generation_config.json",
    INDEX,
    *TOKENIZER_FILES,
    "vocab.txt",
    "additional_chat_templates/*.jinja",
)
"""The files of a hub model that are wanted beside its weights."""


ACCEPTED = "accepted: owner/name, in the hub or its local cache, or a folder"


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
    """The folder of a hub model in the hub's own cache, downloaded when missing. Where the hub fails in whatever way,
    the copy in the cache is used, and one line says so."""
    foreign = _foreign_errors()
    try:
        return _snapshot(model)
    except foreign as error:
        reason = _reason(model, error)
        try:
            folder = _snapshot(model, local=True)
        except foreign:
            raise CheckpointError(f"{reason}; {ACCEPTED}") from error
    announce(f"{reason}; the copy in the local hub cache is used")
    return folder


def _foreign_errors() -> tuple[type[Exception], ...]:
    """What the hub's library raises. It does not look at what a hub answers before it uses it, so that a wrong answer
    comes out as any error of Python's own."""
    from huggingface_hub.errors import HTTPError

    return HTTPError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError


def _snapshot(model: str, local: bool = False) -> Path:
    """The snapshot with everything that is wanted, of one commit. Weights come last: the config says first whether the
    model can be computed."""
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(model, allow_patterns=list(SETTINGS), local_files_only=local))
    parse_config(read_json(folder / "config.json"))
    wanted = set((weight_map(folder) or {WHOLE: WHOLE}).values())
    fetch = partial(snapshot_download, model, revision=folder.name, local_files_only=local)
    fetch(allow_patterns=[glob.escape(name) for name in wanted])
    if wanted == {WHOLE} and not (folder / WHOLE).exists():  # weights under names of their own
        fetch(allow_patterns=["*.safetensors"], ignore_patterns=["*/*"])
    elif not all((folder / name).exists() for name in wanted):
        raise FileNotFoundError("its weights are not there, or not all of them")
    return folder


def _reason(model: str, error: Exception) -> str:
    """Why a model does not come from the hub, in words."""
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    response = getattr(error.__cause__, "response", None)
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no model {model!r} that you may read"
    if isinstance(error, LocalEntryNotFoundError) and response is not None:
        return f"{model} cannot be downloaded: the hub answers with status {response.status_code}"
    if isinstance(error, LocalEntryNotFoundError):
        return f"{model} is not in the local hub cache and the hub cannot be reached"
    if isinstance(error, (LookupError, TypeError, AttributeError, json.JSONDecodeError)):
        return f"{model} cannot be downloaded: the hub's answer is not understood"
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return f"{model} cannot be downloaded: {first.rstrip('.')}"
