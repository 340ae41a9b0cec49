"""Choosing between input maps: for each linear, the one with the least output error on real text.

## Choice

A map is kept only where it beats rounding without any map. The text decides: on text that the maps were fitted to, the
choice is a search; on held-out text, it guards against maps that help on calibration text only.

Position 0 has no say. At an attention sink its row is hundreds of times larger than all others together.

## What is lost

Each linear is judged alone, on one sequence of the text.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import Key
from quasar_lab.quantization.layer_error import output_error, relative_error, rounded_linear
from quasar_lab.quantization.linear_formats import W8A8, LinearFormat


def least_error(
    decoder: Decoder,
    proposed: Mapping[Key, Sequence[InputMap]],
    sequences: Sequence[list[int]],
    linear_format: LinearFormat = W8A8,
) -> dict[Key, InputMap]:
    """Per linear, the proposal with the least output error on the longest of `sequences`. A linear that is best rounded
    as it is has none."""
    kept: dict[Key, InputMap] = {}

    def tap(layer: int, projection: str, x: Tensor) -> None:
        key = (layer, projection)
        weight = decoder.checkpoint.linear_weight(key).float()
        x = x[1:] if len(x) > 1 else x
        exact = x @ weight.T
        least = output_error(x, weight, None, linear_format)
        for input_map in proposed.get(key, ()):
            error = relative_error(rounded_linear(x, weight, input_map, linear_format), exact)
            if error < least:
                least, kept[key] = error, input_map

    sequence = max(sequences, key=len)
    decoder.forward(sequence, decoder.new_cache(len(sequence)), taps=tap)
    return kept
