"""BF16 decoder → W8A8 decoder: smooth, fold, round, save.

A recipe (`recipes`) says which mapping every linear's input gets; here the mappings are folded into what comes before
and after, exactly, and then rounded. Weights are symmetric INT8 with one scale per output channel, activations
symmetric INT8 with one scale per token, computed as they flow. The embedding table stays BF16 and is shared with the
original, bit for bit, also when it is tied to the head.

Every linear is quantized, the head too. It is a fifth of the embedded model's bytes and adds about 0.0004 to a KL of
0.0019: a BF16 head would make the step read 21 % more bytes for that.

A quantized model is saved under (checkpoint checksum, recipe, calibration hash, schema): the second use loads in a
moment.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from quasar_kernels import Transform
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from quasar_lab.models.checkpoint import PARTS, Checkpoint
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.models.linear import Int8Linear, Layer
from quasar_lab.models.value_basis import placed
from quasar_lab.quantization import calibration
from quasar_lab.quantization.folding import (
    compensated_rounding,
    quantized_tensors,
)
from quasar_lab.quantization.layer_error import error_table
from quasar_lab.quantization.recipes import Recipe, mappings, parse_recipe
from quasar_lab.quantization.rotation import rotation_matrix
from quasar_lab.support import storage
from quasar_lab.support.errors import RecipeError
from quasar_lab.support.progress import announce

SCHEMA = 4
RECORD, WEIGHTS = "recipe.json", "weights.safetensors"


def saved_folder(checkpoint: Checkpoint, recipe: Recipe, calibration_hash: str) -> Path:
    """Where the cache keeps this quantized model."""
    identity = "\0".join((checkpoint.checksum, recipe.identity, calibration_hash, str(SCHEMA)))
    name = (
        f"{checkpoint.name.replace('/', '--')}-{recipe.identity}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    )
    return storage.cache_folder() / "quantized" / name


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
        _check_replaceable(out)
    identity = {
        "schema": SCHEMA,
        "checksum": decoder.checkpoint.checksum,
        "recipe": parsed.identity,
        "calibration": digest,
    }

    def complete(path: Path) -> bool:
        try:
            saved = read_record(path)
            return saved["weights_bytes"] == (path / WEIGHTS).stat().st_size and saved.items() >= identity.items()
        except (RecipeError, OSError, KeyError):
            return False

    def build(work: Path) -> None:
        announce(f"Preparing {recipe} of {decoder.checkpoint.name}, once …")
        fitted, held_out = calibration.split_held_out(calibration.sequences(decoder, calibration_file))
        statistics = calibration.collect(decoder, fitted)
        found, rounding = mappings(decoder, statistics, parsed, fitted, held_out), None
        if parsed.method == "rotated":
            rounding = compensated_rounding(calibration.grams(decoder, fitted, held_out), found)
        tensors = quantized_tensors(decoder.checkpoint, found, rounding)
        save_file({name: value.contiguous() for name, value in tensors.items()}, work / WEIGHTS)
        table = error_table(decoder, statistics, found, tensors, held_out)
        record = {**identity, "model": decoder.checkpoint.name, "tokens": statistics.tokens, "errors": table}
        record["weights_bytes"] = (work / WEIGHTS).stat().st_size
        (work / RECORD).write_text(json.dumps(record, indent=1))

    return storage.build_once(folder, complete, build)


def quantize(decoder: Decoder, recipe: str = "w8a8", calibration_file: Path | str | None = None) -> Decoder:
    """The W8A8 verifier of a BF16 decoder; prepared and cached on first use. Shares the embedding and the head norms
    with `decoder`."""
    path = None if calibration_file is None else Path(calibration_file)
    return load_quantized(decoder, prepare(decoder, recipe, path), recipe)


def read_record(folder: Path) -> dict[str, Any]:
    """recipe.json of a saved model. Raises RecipeError when it is missing, unreadable or of another schema."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{folder} is no saved recipe: {RECORD} is missing or unreadable") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        found = record.get("schema") if isinstance(record, dict) else None
        raise RecipeError(f"{folder} has schema {found!r}; accepted: {SCHEMA}; prepare it again")
    return record


def largest_error(decoder: Decoder, recipe: str = "w8a8") -> dict[str, Any]:
    """The row of the recipe's error table with the largest output error; prepares the recipe on first use."""
    return max(read_record(prepare(decoder, recipe))["errors"], key=lambda row: row["error"])


def _check_replaceable(out: Path) -> None:
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
    try:
        return {"schema", "checksum", "recipe"} <= set(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return False


def load_quantized(decoder: Decoder, folder: Path, name: str) -> Decoder:
    """A saved model as a decoder called `name`. Raises RecipeError when it belongs to other weights, or is damaged."""
    record = read_record(folder)
    if record.get("checksum") != decoder.checkpoint.checksum:
        raise RecipeError(f"{folder} was made from {record.get('model')} with other weights; prepare it again")
    ops, device, config, saved = decoder.ops, decoder.device, decoder.config, _SavedTensors(folder / WEIGHTS)

    shapes = config.projection_shapes()

    def linear(layer: int, projection: str, base: str, shape: tuple[int, int]) -> Int8Linear:
        wq, mapping = saved.get(f"{base}.wq", torch.int8, shape), found.get((layer, projection))
        transform = None if mapping is None else online(mapping, projection)
        bias = saved.optional(f"{base}.bias", shape[:1])
        return Int8Linear(
            weight=ops.pack_w8a8(wq.to(device)),
            wscale=saved.get(f"{base}.wscale", torch.float32, shape[:1]).to(device),
            bias=None if bias is None else bias.to(device),
            transform=None if transform is None else placed(transform, device),
            shape=shape,
        )

    def part(layer: int, projection: str) -> Int8Linear:
        return linear(layer, projection, f"layers.{layer}.{projection}", shapes[projection])

    def layer(index: int, original: Layer) -> Layer:
        base = f"layers.{index}"
        return replace(
            original,
            attention_norm=saved.get(f"{base}.attention_norm", torch.float32, (config.hidden,)).to(device),
            mlp_norm=saved.get(f"{base}.mlp_norm", torch.float32, (config.hidden,)).to(device),
            qkv_proj=part(index, "qkv_proj"),
            o_proj=part(index, "o_proj"),
            gate_up_proj=part(index, "gate_up_proj"),
            down_proj=part(index, "down_proj"),
        )

    names = {(index, part): f"layers.{index}.{part}" for index in range(config.layers) for part in PARTS}
    found = {
        key: saved.mapping(base, shapes[key[1]][1], config.head_dim if key[1] == "o_proj" else None)
        for key, base in names.items()
    }
    found[config.layers, "lm_head"] = saved.mapping("lm_head", config.hidden)
    return replace(
        decoder,
        name=name,
        layers=[layer(index, original) for index, original in enumerate(decoder.layers)],
        head=linear(config.layers, "lm_head", "lm_head", (config.vocab, config.hidden)),
        mappings={key: mapping for key, mapping in found.items() if mapping is not None},
    )


def online(mapping: InputMap, projection: str) -> Transform | None:
    """What is left to do on the way into a linear, after folding: nothing in front of o_proj; the division only in
    front of the head."""
    if projection == "o_proj":
        return None
    scaled = mapping.factors if projection == "lm_head" else torch.ones(())
    shift = None if mapping.shift is None else mapping.shift * scaled / mapping.factors
    inv_smooth = 1.0 / mapping.factors if projection == "lm_head" else None
    if inv_smooth is None and shift is None and mapping.rotation is None:
        return None
    return Transform(inv_smooth=inv_smooth, shift=shift, rotation=mapping.rotation)


class _SavedTensors:
    """Tensors of a weights file, each checked: kernels trust shapes, so a damaged file must not reach them."""

    def __init__(self, path: Path):
        self._path = path
        try:
            with safe_open(path, framework="pt") as file:
                self._tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError) as error:
            raise RecipeError(f"{path} is truncated or corrupt; prepare it again") from error

    def get(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Raises RecipeError unless the tensor is there with this dtype and shape."""
        found = self._tensors.get(name)
        if found is None or found.dtype != dtype or tuple(found.shape) != shape:
            what = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise RecipeError(f"{self._path} holds {what} as {name}; accepted: {dtype} {list(shape)}; prepare it again")
        return found

    def optional(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """The f32 tensor, or None where there is none."""
        return self.get(name, torch.float32, shape) if name in self._tensors else None

    def mapping(self, base: str, size: int, group: int | None = None) -> InputMap | None:
        """The mapping of a linear of `size` inputs, of which `group` are rotated together; None where there is none."""
        factors, expected = self.optional(f"{base}.factors", (size,)), rotation_matrix(group or size)
        if factors is None:
            return None
        rotation = None if expected is None else self.optional(f"{base}.rotation", tuple(expected.shape))
        return InputMap(factors, rotation, group, self.optional(f"{base}.shift", (size,)))
