"""The output error of one rounded linear, alone: ‖x Wᵀ − what the rounded linear gives‖ / ‖x Wᵀ‖.

## Idea

The error of a linear can be measured on its input for some text, without running the whole quantized model. So recipes
choose between input maps by it, and the table of a prepared recipe shows it for every linear.

## What is lost

The error of one linear is not the error of the model. Errors of different linears add up, or cancel.
"""

from dataclasses import dataclass

from torch import Tensor

from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import Key, linear_name
from quasar_lab.quantization.calibration import Calibration
from quasar_lab.quantization.folding import unfold_outputs
from quasar_lab.quantization.linear_formats import W8A8, LinearFormat
from quasar_lab.support.result import Result


@dataclass(frozen=True)
class LinearError(Result):
    """How difficult the input of one linear is, and what rounding costs there."""

    layer: int
    """The layer; for the head, the number of layers."""
    projection: str
    """The projection, or "lm_head"."""
    max_over_median: float
    """The largest max|x| of a channel over the median of all channels, on the calibration text."""
    error_plain: float
    """Output error on held-out text when weight and input are rounded as they are."""
    error: float
    """Output error on held-out text with the recipe."""


def output_error(
    x: Tensor, weight: Tensor, factors: Tensor | InputMap | None = None, linear_format: LinearFormat = W8A8
) -> float:
    """‖x Wᵀ − Q(x/s) Q(W·s)ᵀ‖ / ‖x Wᵀ‖ of one linear, Q rounding both sides to nearest; x f32 [M, K], weight [N, K],
    factors s f32 [K], or a map that also shifts and rotates."""
    weight = weight.float()
    input_map = InputMap(factors) if isinstance(factors, Tensor) else factors
    return relative_error(rounded_linear(x, weight, input_map, linear_format), x @ weight.T)


def rounded_linear(x: Tensor, weight: Tensor, input_map: InputMap | None, linear_format: LinearFormat = W8A8) -> Tensor:
    """x Wᵀ f32 [M, N] with both sides mapped, then rounded to nearest; x f32 [M, K], weight f32 [N, K]."""
    if input_map is None:
        return linear_format.product(x, linear_format.round_to_nearest(weight))
    rounded = linear_format.round_to_nearest(input_map.weight(weight))
    product = linear_format.product(input_map.inputs(x), rounded)
    moved = input_map.bias(weight, None)
    return product if moved is None else product + moved


def relative_error(found: Tensor, exact: Tensor) -> float:
    """‖found − exact‖ / ‖exact‖."""
    return float((found - exact).norm() / exact.norm().clamp(min=1e-30))


def error_table(
    calibration: Calibration,
    maps: dict[Key, InputMap],
    tensors: dict[str, Tensor],
    linear_format: LinearFormat = W8A8,
) -> list[LinearError]:
    """The errors of every linear of `folding.quantized_tensors`, measured on the longest held-out sequence."""
    decoder = calibration.decoder
    errors: dict[Key, tuple[float, float]] = {}

    def tap(layer: int, projection: str, x: Tensor) -> None:
        key = (layer, projection)
        weight = decoder.checkpoint.linear_weight(key).float()
        input_map = maps.get(key)
        mapped = x if input_map is None else input_map.inputs(x)
        rounded = linear_format.product(mapped, _tensors_of(linear_name(key), tensors))
        rounded = unfold_outputs(rounded, key, maps, decoder.config)
        moved = None if input_map is None else input_map.bias(weight, None)
        error = relative_error(rounded if moved is None else rounded + moved, x @ weight.T)
        errors[key] = output_error(x, weight, None, linear_format), error

    sequence = max(calibration.held_out, key=len)
    decoder.forward(sequence, decoder.new_cache(len(sequence)), taps=tap)
    rows = []
    for key, (plain, with_recipe) in errors.items():
        largest = calibration.statistics.channels[key].largest
        peak = float(largest.max() / largest.median().clamp(min=1e-30))
        rows.append(LinearError(*key, max_over_median=peak, error_plain=plain, error=with_recipe))
    return rows


def _tensors_of(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one linear, by the ending of their name."""
    start = f"{name}."
    return {full.removeprefix(start): tensor for full, tensor in tensors.items() if full.startswith(start)}
