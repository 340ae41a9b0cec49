"""BF16 decoder → W8A8 decoder: calibrate, map, fold, round, save, load.

## Idea

A recipe (`recipes`) says which map the input of every linear gets. The maps are folded into what comes before and
after, exactly (`folding`). Then weights are rounded and saved, and the saved model is loaded (`loading`).

## Choice

A quantized model is saved under (checkpoint checksum, recipe, calibration hash, schema), so that the second use loads
in a moment. What has to be prepared is prepared once, also when two processes ask at the same time.

## What is lost

Disk: a copy of the model's INT8 weights for every recipe that was tried.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from quasar_lab.models.checkpoint import Checkpoint
from quasar_lab.models.decoder import Decoder
from quasar_lab.quantization import calibration
from quasar_lab.quantization.folding import quantized_tensors
from quasar_lab.quantization.layer_error import LinearError, error_table
from quasar_lab.quantization.linear_formats import W8A8
from quasar_lab.quantization.loading import load_quantized, online
from quasar_lab.quantization.recipes import Recipe, parse_recipe
from quasar_lab.quantization.record import RECORD, SCHEMA, WEIGHTS, Record, check_replaceable, read_record
from quasar_lab.support import storage
from quasar_lab.support.errors import RecipeError
from quasar_lab.support.progress import announce

__all__ = [
    "SCHEMA",
    "Record",
    "largest_error",
    "load_quantized",
    "online",
    "prepare",
    "quantize",
    "quantized_tensors",
    "read_record",
    "saved_folder",
]


def quantize(decoder: Decoder, recipe: str = "w8a8", calibration_file: Path | str | None = None) -> Decoder:
    """The W8A8 verifier of a BF16 decoder; prepared and cached on first use. Shares the embedding and the head norms
    with `decoder`."""
    path = None if calibration_file is None else Path(calibration_file)
    return load_quantized(decoder, prepare(decoder, recipe, path), recipe)


def prepare(
    decoder: Decoder, recipe: str = "w8a8", calibration_file: Path | None = None, out: Path | None = None
) -> Path:
    """Smooths, quantizes and saves (in the cache, or as the folder `out`); returns the folder. Does nothing when it is
    already there.

    Raises RecipeError on an unknown recipe, CalibrationError on unusable calibration text.
    """
    parsed = parse_recipe(recipe)
    digest = calibration.file_hash(calibration_file)
    folder = out or saved_folder(decoder.checkpoint, parsed, digest)
    if out is not None:
        check_replaceable(out)
    wanted = Record(
        schema=SCHEMA,
        checksum=decoder.checkpoint.checksum,
        recipe=parsed.identity,
        calibration=digest,
        model=decoder.checkpoint.name,
        format=None if parsed.linear_format is W8A8 else parsed.linear_format.name,
    )

    def build(work: Path) -> None:
        announce(f"Preparing {recipe} of {decoder.checkpoint.name}, once …")
        _build(work, parsed, wanted, calibration.calibrate(decoder, calibration_file))

    return storage.build_once(folder, lambda path: _complete(path, wanted), build)


def saved_folder(checkpoint: Checkpoint, recipe: Recipe, calibration_hash: str) -> Path:
    """Where the cache keeps this quantized model."""
    identity = "\0".join((checkpoint.checksum, recipe.identity, calibration_hash, str(SCHEMA)))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    name = f"{checkpoint.name.replace('/', '--')}-{recipe.identity}-{digest}"
    return storage.cache_folder() / "quantized" / name


def largest_error(decoder: Decoder, recipe: str = "w8a8") -> LinearError:
    """The row of the recipe's error table with the largest output error; prepares the recipe on first use."""
    return max(read_record(prepare(decoder, recipe)).errors, key=lambda row: row.error)


def _build(work: Path, recipe: Recipe, record: Record, calibrated: calibration.Calibration) -> None:
    """Fills the folder `work`: the weights, and last the record."""
    maps = recipe.input_maps(calibrated)
    tensors = quantized_tensors(calibrated.decoder.checkpoint, maps, recipe.rounding(calibrated, maps))
    save_file({name: value.contiguous() for name, value in tensors.items()}, work / WEIGHTS)
    record = replace(
        record,
        tokens=calibrated.statistics.tokens,
        errors=error_table(calibrated, maps, tensors, recipe.linear_format),
        weights_bytes=(work / WEIGHTS).stat().st_size,
        weights_sha256=storage.sha256_file(work / WEIGHTS),
    )
    (work / RECORD).write_text(json.dumps(record.to_json(), indent=1))


def _complete(folder: Path, wanted: Record) -> bool:
    """Whether the folder holds the wanted model, whole: by size, then by content."""
    weights = folder / WEIGHTS
    try:
        saved = read_record(folder)
        whole = saved.identity == wanted.identity and saved.weights_bytes == weights.stat().st_size
        return whole and (saved.weights_sha256 is None or storage.holds(weights, saved.weights_sha256))
    except (RecipeError, OSError):
        return False
