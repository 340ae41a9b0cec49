"""A saved quantized model as a decoder.

The BF16 decoder gives what quantization leaves alone: the embedding table, the norms of heads and the final norm are
shared with it. Norms in front of linears, and all linears, come from the file.
"""

from dataclasses import replace
from pathlib import Path

import torch
from quasar_kernels import Transform
from torch import Tensor

from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.models.linear import Layer, Linear
from quasar_lab.models.model_config import Key, linear_name
from quasar_lab.quantization.linear_formats import W8A8, LinearFormat, SavedLinear
from quasar_lab.quantization.recipes import RECIPES
from quasar_lab.quantization.record import WEIGHTS, Record, read_record
from quasar_lab.quantization.saved_tensors import SavedTensors
from quasar_lab.support.errors import RecipeError


def load_quantized(decoder: Decoder, folder: Path, name: str) -> Decoder:
    """A saved model as a decoder called `name`. Raises RecipeError when it belongs to other weights, or is damaged."""
    record = read_record(folder)
    if record.checksum != decoder.checkpoint.checksum:
        raise RecipeError(f"{folder} was made from {record.model} with other weights; prepare it again")
    loader = _Loader(decoder, SavedTensors(folder / WEIGHTS), _format_of(record))
    return replace(
        decoder,
        name=name,
        layers=[loader.layer(index, original) for index, original in enumerate(decoder.layers)],
        head=loader.linear((decoder.config.layers, "lm_head")),
        mappings=loader.maps,
    )


def online(input_map: InputMap, projection: str) -> Transform | None:
    """What is left to do on the way into a linear, after folding. Nothing is in front of o_proj. Only the head's
    input is divided."""
    if projection == "o_proj":
        return None
    scaled = input_map.factors if projection == "lm_head" else torch.ones(())
    shift = None if input_map.shift is None else input_map.shift * scaled / input_map.factors
    inv_smooth = 1.0 / input_map.factors if projection == "lm_head" else None
    if inv_smooth is None and shift is None and input_map.rotation is None:
        return None
    return Transform(inv_smooth=inv_smooth, shift=shift, rotation=input_map.rotation)


def _format_of(record: Record) -> LinearFormat:
    """The format of the linears. Raises RecipeError on one that no recipe of this version has."""
    formats = {W8A8.name: W8A8} | {recipe.linear_format.name: recipe.linear_format for recipe in RECIPES.values()}
    name = record.format or W8A8.name
    if name not in formats:
        raise RecipeError(f"the saved model has linears in {name!r}; accepted: {', '.join(formats)}")
    return formats[name]


class _Loader:
    """Builds the layers and linears of a decoder from saved tensors."""

    def __init__(self, decoder: Decoder, saved: SavedTensors, linear_format: LinearFormat):
        self._decoder = decoder
        self._saved = saved
        self._format = linear_format
        found = {key: self._input_map(key) for key in decoder.config.linear_keys()}
        self.maps: dict[Key, InputMap] = {key: one for key, one in found.items() if one is not None}

    def _input_map(self, key: Key) -> InputMap | None:
        config = self._decoder.config
        group = config.head_dim if key[1] == "o_proj" else None
        return self._saved.input_map(linear_name(key), config.linear_shape(key)[1], group)

    def linear(self, key: Key) -> Linear:
        """One linear on the decoder's device."""
        input_map = self.maps.get(key)
        transform = None if input_map is None else online(input_map, key[1])
        saved = SavedLinear(self._saved, linear_name(key), self._decoder.config.linear_shape(key), transform)
        return self._format.load(saved, self._decoder.ops, self._decoder.device)

    def layer(self, index: int, original: Layer) -> Layer:
        """One block with saved norms and linears in place of the original's."""
        return replace(
            original,
            attention_norm=self._norm(f"layers.{index}.attention_norm"),
            mlp_norm=self._norm(f"layers.{index}.mlp_norm"),
            qkv_proj=self.linear((index, "qkv_proj")),
            o_proj=self.linear((index, "o_proj")),
            gate_up_proj=self.linear((index, "gate_up_proj")),
            down_proj=self.linear((index, "down_proj")),
        )

    def _norm(self, name: str) -> Tensor:
        gains = self._saved.get(name, torch.float32, (self._decoder.config.hidden,))
        return gains.to(self._decoder.device)
