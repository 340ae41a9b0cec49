"""The output error of one rounded linear."""

from typing import Any

from quasar_kernels.reference import quantize_rows
from torch import Tensor

from quasar_lab.models.checkpoint import Key, weight_of
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.calibration import Statistics
from quasar_lab.quantization.folding import _unfold_outputs
from quasar_lab.quantization.gptq import quantize_weight


def output_error(x: Tensor, weight: Tensor, factors: Tensor | InputMap | None = None) -> float:
    """‖x Wᵀ − Q(x/s) Q(W·s)ᵀ‖ / ‖x Wᵀ‖ of one linear, Q rounding both sides to INT8, to nearest; x f32 [M, K], weight
    [N, K], factors s f32 [K], or a mapping that also shifts and rotates."""
    weight = weight.float()
    mapping = InputMap(factors) if isinstance(factors, Tensor) else factors
    return relative_error(_rounded_linear(x, weight, mapping), x @ weight.T)


def _rounded_linear(x: Tensor, weight: Tensor, mapping: InputMap | None) -> Tensor:
    if mapping is None:
        return rounded_product(x, *quantize_weight(weight))
    product = rounded_product(mapping.inputs(x), *quantize_weight(mapping.weight(weight)))
    moved = mapping.bias(weight, None)
    return product if moved is None else product + moved


def rounded_product(x: Tensor, wq: Tensor, wscale: Tensor) -> Tensor:
    """x Wᵀ f32 [M, N] as the W8A8 linear computes it: mapped inputs x f32 [M, K], rounded here; wq int8 [N, K] of the
    mapped weight with wscale f32 [N]."""
    q, scale = quantize_rows(x)
    return (q.float() * scale[:, None]) @ (wq.float() * wscale[:, None]).T


def relative_error(found: Tensor, exact: Tensor) -> float:
    """‖found − exact‖ / ‖exact‖."""
    return float((found - exact).norm() / exact.norm().clamp(min=1e-30))


def error_table(
    decoder: Decoder,
    statistics: Statistics,
    found: dict[Key, InputMap],
    tensors: dict[str, Tensor],
    held_out: list[list[int]],
) -> list[dict[str, Any]]:
    """Per linear, on text that was not fitted: largest |x| over the channels' median, output error rounded plainly and
    with the recipe."""
    rows = []
    collected: dict[Key, tuple[float, float]] = {}

    def tap(layer: int, projection: str, x: Tensor) -> None:
        key = (layer, projection)
        weight = weight_of(decoder.checkpoint, key).float()
        name = projection if projection == "lm_head" else f"layers.{layer}.{projection}"
        mapping = found.get(key)
        mapped = x if mapping is None else mapping.inputs(x)
        rounded = rounded_product(mapped, tensors[f"{name}.wq"], tensors[f"{name}.wscale"])
        rounded = _unfold_outputs(rounded, key, found, decoder.config)
        moved = None if mapping is None else mapping.bias(weight, None)
        error = relative_error(rounded if moved is None else rounded + moved, x @ weight.T)
        collected[key] = output_error(x, weight), error

    sequence = max(held_out, key=len)
    decoder.forward(sequence, decoder.new_cache(len(sequence)), taps=tap)
    for (layer, projection), (plain, smoothed) in collected.items():
        largest = statistics.channels[layer, projection].largest
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
