"""recipe.json: what a saved model says about itself.

It is written last and tells for which model, recipe and text the weights were made, and whether they are complete. It
also keeps the error table.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from quasar_lab.quantization.layer_error import LinearError
from quasar_lab.support.errors import InputError, RecipeError
from quasar_lab.support.result import Result, left_out

SCHEMA = 4
"""Of saved models. Another number makes every model be prepared again."""
RECORD = "recipe.json"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Record(Result):
    """The content of recipe.json. A file that lacks one of the later keys is read, and counts as incomplete."""

    IDENTITY: ClassVar[tuple[str, ...]] = ("schema", "checksum", "recipe", "calibration")
    """The keys that decide whether a saved model is the one wanted."""

    schema: int
    """`SCHEMA` of the version that wrote it."""
    checksum: str = ""
    """Checksum of the BF16 model's checkpoint."""
    recipe: str = ""
    """`identity` of the recipe."""
    calibration: str = ""
    """SHA-256 of the calibration text."""
    model: str = ""
    """Name of the BF16 model's checkpoint."""
    tokens: int = 0
    """Number of tokens that were fitted to."""
    errors: list[LinearError] = field(default_factory=list)
    """The error of every linear, in the order of a pass."""
    weights_bytes: int = 0
    """Size of the weights file."""
    weights_sha256: str | None = left_out()
    """SHA-256 of the weights file; absent where a version before wrote it."""
    format: str | None = left_out()
    """Name of the linears' format; W8A8 where it is absent."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for saved models that stand for each other."""
        return tuple(getattr(self, key) for key in self.IDENTITY)


def read_record(folder: Path) -> Record:
    """The record of a saved model. Raises RecipeError when it is missing, unreadable or of another schema."""
    try:
        document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{folder} is no saved recipe: {RECORD} is missing or unreadable") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else None
        raise RecipeError(f"{folder} has schema {found!r}; accepted: {SCHEMA}; prepare it again")
    try:
        return Record.from_json(document)
    except InputError as error:
        raise RecipeError(f"{folder} holds a damaged {RECORD}: {error}; prepare it again") from error


def check_replaceable(out: Path) -> None:
    """Raises RecipeError unless `out` is new, empty, or holds a saved recipe and nothing else: no file of anybody's is
    lost."""
    if out.is_dir() and not out.is_symlink():
        names = {path.name for path in out.iterdir()}
        if not names or (names <= {RECORD, WEIGHTS} and _is_record(out)):
            return
    elif not out.exists() and not out.is_symlink():
        return
    raise RecipeError(f"{out} is no saved recipe; accepted: a new or empty folder")


def _is_record(folder: Path) -> bool:
    """Whether recipe.json is one, of this or another version's schema."""
    try:
        return {"schema", "checksum", "recipe"} <= set(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return False
