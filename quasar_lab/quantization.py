"""BF16 decoder → W8A8 decoder: smooth, fold, round, save.

A *recipe* says how. ``w8a8-plain`` rounds as it is; ``w8a8-smoothquant[:α]`` smooths first; ``w8a8``, the default, is
the best measured one. Weights are symmetric INT8 with one scale per output channel (rounded to nearest), activations
symmetric INT8 with one scale per token, computed as they flow. Every linear is quantized, the head too: it is a fifth
of the embedded model's bytes. The embedding table stays BF16 and is shared with the original, bit for bit, also when it
is tied to the head.

A quantized model is saved under (checkpoint checksum, recipe, calibration hash, schema): the second use loads in a
moment.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from quasar_kernels import Transform
from quasar_kernels.reference import quantize_rows
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from quasar_lab import calibration, storage
from quasar_lab.calibration import Key, Statistics
from quasar_lab.checkpoints import PARTS, Checkpoint
from quasar_lab.decoder import Decoder, Int8Linear, Layer, ValueMap, select_ops
from quasar_lab.errors import CheckpointError, NotInThisVersion, RecipeError
from quasar_lab.progress import announce
from quasar_lab.smoothing import column_max, fold_into_norm, fold_into_rows, o_proj_factors, smoothquant_factors

SCHEMA = 2
RECORD, WEIGHTS = "recipe.json", "weights.safetensors"
DEFAULT_ALPHA = 0.5
LATER = ("w4a8", "w4a16", "w2a16")


@dataclass(frozen=True)
class Recipe:
    """name as the user wrote it; alpha None: no smoothing."""

    name: str
    alpha: float | None

    @property
    def identity(self) -> str:
        """Recipes that do the same share one saved model."""
        return "plain" if self.alpha is None else f"smoothquant-{self.alpha:g}"


def parse_recipe(text: str) -> Recipe:
    """Raises RecipeError on an unknown name or an α outside 0…1."""
    name, colon, option = text.partition(":")
    if name in LATER:
        raise NotInThisVersion(f"recipe {name}")
    if name == "w8a8-smoothquant":
        try:
            alpha = abs(float(option)) if colon and float(option) >= 0 else -1.0 if colon else DEFAULT_ALPHA
        except ValueError:
            alpha = -1.0
        if not 0 <= alpha <= 1:
            raise RecipeError(f"α is {option!r} in recipe {text!r}; accepted: a number in 0…1")
        return Recipe(text, alpha)
    if colon or name not in ("w8a8", "w8a8-plain"):
        raise RecipeError(f"unknown recipe {text!r}; accepted: w8a8, w8a8-plain, w8a8-smoothquant[:alpha]")
    return Recipe(text, None if name == "w8a8-plain" else DEFAULT_ALPHA)


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Per output channel, to nearest: W [N, K] → wq int8 [N, K] in −127…127, wscale f32 [N]. A row of zeros gets scale
    1."""
    return quantize_rows(weight.float())


def output_error(x: Tensor, weight: Tensor, factors: Tensor | None = None) -> float:
    """‖x Wᵀ − Q(x/s) Q(W·s)ᵀ‖ / ‖x Wᵀ‖ of one linear, Q rounding both sides to INT8; x f32 [M, K], weight [N, K],
    factors s f32 [K]."""
    weight = weight.float()
    exact = x @ weight.T
    if factors is not None:
        x, weight = x / factors, weight * factors
    (q, scale), (wq, wscale) = quantize_rows(x), quantize_weight(weight)
    rounded = (q.float() * scale[:, None]) @ (wq.float() * wscale[:, None]).T
    return float((rounded - exact).norm() / exact.norm().clamp(min=1e-30))


def smoothing_factors(checkpoint: Checkpoint, statistics: Statistics, alpha: float) -> dict[Key, Tensor]:
    """Factors s f32 [K] of every linear of the model."""
    config, factors = checkpoint.config, {}
    for layer in range(config.layers):
        for projection in PARTS:
            key = (layer, projection)
            weight_max = column_max(checkpoint.projection(layer, projection)[0])
            if projection == "o_proj":
                factors[key] = o_proj_factors(statistics.largest[key], weight_max, alpha, config)
            else:
                factors[key] = smoothquant_factors(statistics.largest[key], weight_max, alpha)
    head = checkpoint.head()
    key = (config.layers, "lm_head")
    weight_max = column_max(checkpoint.embedding() if head is None else head)
    factors[key] = smoothquant_factors(statistics.largest[key], weight_max, alpha)
    return factors


def quantized_tensors(checkpoint: Checkpoint, factors: dict[Key, Tensor]) -> dict[str, Tensor]:
    """Everything a saved W8A8 model holds, by name; `factors` empty: rounded as it is. Folding is exact before
    rounding."""
    config, out = checkpoint.config, {}

    def put(name: str, weight: Tensor, bias: Tensor | None, key: Key) -> None:
        out[f"{name}.wq"], out[f"{name}.wscale"] = quantize_weight(weight)
        if not bool(torch.isfinite(out[f"{name}.wscale"]).all()):
            raise CheckpointError(f"{name} of {checkpoint.name} holds NaN or infinite weights")
        if bias is not None:
            out[f"{name}.bias"] = bias
        if key in factors:
            out[f"{name}.factors"] = factors[key]

    for layer in range(config.layers):
        base = f"layers.{layer}"
        parts = {}
        for name in PARTS:
            weight, bias = checkpoint.projection(layer, name)
            s = factors.get((layer, name))
            parts[name] = (weight.float() if s is None else weight.float() * s, bias)
        attention_norm = checkpoint.norm(f"model.{base}.input_layernorm")
        mlp_norm = checkpoint.norm(f"model.{base}.post_attention_layernorm")
        if factors:
            attention_norm = fold_into_norm(attention_norm, factors[layer, "qkv_proj"])
            mlp_norm = fold_into_norm(mlp_norm, factors[layer, "gate_up_proj"])
            value = factors[layer, "o_proj"].reshape(config.kv_heads, -1, config.head_dim)[:, 0].reshape(-1)
            value_rows = slice((config.heads + config.kv_heads) * config.head_dim, None)
            parts["qkv_proj"] = fold_into_rows(*parts["qkv_proj"], value_rows, value)
            parts["gate_up_proj"] = fold_into_rows(
                *parts["gate_up_proj"], slice(config.mlp, None), factors[layer, "down_proj"]
            )
        out[f"{base}.attention_norm"], out[f"{base}.mlp_norm"] = attention_norm, mlp_norm
        for name, (weight, bias) in parts.items():
            put(f"{base}.{name}", weight, bias, (layer, name))

    head = checkpoint.head()
    weight = (checkpoint.embedding() if head is None else head).float()
    key = (config.layers, "lm_head")
    put("lm_head", weight * factors[key] if factors else weight, None, key)
    return out


def error_table(
    decoder: Decoder, statistics: Statistics, factors: dict[Key, Tensor], held_out: list[list[int]]
) -> list[dict[str, Any]]:
    """Per linear, on text that was not fitted: largest |x| over the channels' median, output error rounded plainly and
    with the recipe."""
    rows = []
    collected: dict[Key, list[float]] = {}

    def tap(layer: int, projection: str, x: Tensor) -> None:
        if projection == "lm_head":
            head = decoder.checkpoint.head()
            weight = decoder.checkpoint.embedding() if head is None else head
        else:
            weight = decoder.checkpoint.projection(layer, projection)[0]
        plain = output_error(x, weight)
        smoothed = output_error(x, weight, factors[layer, projection]) if factors else plain
        collected.setdefault((layer, projection), []).append(plain)
        collected[layer, projection].append(smoothed)

    sequence = max(held_out, key=len)
    decoder.forward(sequence, decoder.new_cache(len(sequence)), taps=tap)
    for (layer, projection), (plain, smoothed) in collected.items():
        largest = statistics.largest[layer, projection]
        rows.append(
            {
                "layer": layer,
                "projection": projection,
                "max_over_median": float(largest.max() / largest.median().clamp(min=1e-30)),
                "error_plain": plain,
                "error": smoothed,
            }
        )
    return rows


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
        factors = {} if parsed.alpha is None else smoothing_factors(decoder.checkpoint, statistics, parsed.alpha)
        tensors = quantized_tensors(decoder.checkpoint, factors)
        save_file({name: value.contiguous() for name, value in tensors.items()}, work / WEIGHTS)
        table = error_table(decoder, statistics, factors, held_out)
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
    ops, saved, config = select_ops(decoder.backend, decoder.device), _SavedTensors(folder / WEIGHTS), decoder.config

    def linear(base: str, shape: tuple[int, int], smoothed_online: bool = False) -> Int8Linear:
        wq = saved.get(f"{base}.wq", torch.int8, shape)
        factors = saved.optional(f"{base}.factors", shape[1:]) if smoothed_online else None
        return Int8Linear(
            weight=ops.pack_w8a8(wq),
            wscale=saved.get(f"{base}.wscale", torch.float32, shape[:1]),
            bias=saved.optional(f"{base}.bias", shape[:1]),
            transform=None if factors is None else Transform(inv_smooth=1.0 / factors),
            shape=shape,
        )

    def layer(index: int, original: Layer) -> Layer:
        base, shapes = f"layers.{index}", config.projection_shapes()
        return replace(
            original,
            attention_norm=saved.get(f"{base}.attention_norm", torch.float32, (config.hidden,)),
            mlp_norm=saved.get(f"{base}.mlp_norm", torch.float32, (config.hidden,)),
            qkv_proj=linear(f"{base}.qkv_proj", shapes["qkv_proj"]),
            o_proj=linear(f"{base}.o_proj", shapes["o_proj"]),
            gate_up_proj=linear(f"{base}.gate_up_proj", shapes["gate_up_proj"]),
            down_proj=linear(f"{base}.down_proj", shapes["down_proj"]),
        )

    inputs = {key: shape[1] for key, shape in config.projection_shapes().items()}
    keys: dict[Key, str] = {(index, part): f"layers.{index}.{part}" for index in range(config.layers) for part in PARTS}
    smoothing = {key: saved.optional(f"{base}.factors", (inputs[key[1]],)) for key, base in keys.items()}
    smoothing[config.layers, "lm_head"] = saved.optional("lm_head.factors", (config.hidden,))
    return replace(
        decoder,
        name=name,
        layers=[layer(index, original) for index, original in enumerate(decoder.layers)],
        head=linear("lm_head", (config.vocab, config.hidden), smoothed_online=True),
        smoothing={key: factors for key, factors in smoothing.items() if factors is not None},
        value_maps={
            layer: ValueMap(inv_scale=1 / factors.reshape(config.kv_heads, -1, config.head_dim)[:, 0])
            for (layer, projection), factors in smoothing.items()
            if projection == "o_proj" and factors is not None
        },
    )


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
