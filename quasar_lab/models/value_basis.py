"""The basis in which a recipe keeps cached values, and rows that change over into it.

## Idea

What a recipe does to the input of o_proj is folded into the values: an INT8 verifier caches scaled, shifted and turned
values, while keys are those of the BF16 model. So rows that the BF16 model computed can be *adopted*: keys are copied,
and values are brought into the verifier's basis.

## Choice

One map for all layers, in a few large operations, wherever the layers' maps have the same parts. Thirty small ones
would take five times as long.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from quasar_kernels import Transform

from quasar_lab.models.input_map import InputMap, ValueMap, of_all_layers, value_map
from quasar_lab.models.kv_cache import KVCache
from quasar_lab.models.model_config import Key, ModelConfig
from quasar_lab.support.errors import InputError

Moved = TypeVar("Moved", Transform, ValueMap)


def placed(parts: Moved, device: str) -> Moved:
    """A transform or value map with its tensors on the device; on CPUs they are the same ones."""
    tensors: dict[str, Any] = {part.name: getattr(parts, part.name) for part in fields(parts)}
    tensors = {name: tensor if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
    return replace(parts, **tensors)


class ValueBasis:
    """The value maps of one decoder; none of them for BF16."""

    def __init__(self, mappings: Mapping[Key, InputMap], config: ModelConfig, device: str):
        self.maps: dict[int, ValueMap] = {
            layer: placed(value_map(mapping, config), device)
            for (layer, projection), mapping in mappings.items()
            if projection == "o_proj"
        }
        """Layer → its map, where its values are not the BF16 model's."""
        self._together = of_all_layers(self.maps, config.layers)

    def adopt(self, cache: KVCache, other: KVCache, start: int, stop: int) -> None:
        """Rows start…stop − 1 of `other`, a cache of the BF16 model, become rows of `cache`, which then ends at `stop`.

        Raises InputError unless `cache` has rows up to `start`, `other` up to `stop`, and the rows fit.
        """
        if not 0 <= start <= min(stop, cache.length) or stop > min(other.length, cache.capacity):
            raise InputError(
                f"cannot adopt rows {start}…{stop}; accepted: from at most {cache.length}, "
                f"up to {min(other.length, cache.capacity)}"
            )
        cache.k[:, :, start:stop] = other.k[:, :, start:stop]
        if self._together is not None:
            cache.v[:, :, start:stop] = self._together(other.v[:, :, start:stop])
        else:
            cache.v[:, :, start:stop] = other.v[:, :, start:stop]
            for layer, to_here in self.maps.items():
                cache.v[layer, :, start:stop] = to_here(other.v[layer, :, start:stop])
        cache.length = stop
