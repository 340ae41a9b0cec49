"""One linear with its input, measured: what a mapping costs before rounding (nothing), what rounding costs after it.

Rounding replaces X' = (X / s) R by X̂ and W' = (W · s) R by Ŵ. The error of the product has two parts,

    X̂ Ŵᵀ − X' W'ᵀ  =  (X̂ − X') W'ᵀ  +  X' (Ŵ − W')ᵀ  +  (X̂ − X') (Ŵ − W')ᵀ,

the first is what outliers of the activations cost, the second what damaged weights cost; the third, their product, is
small. Smoothing (arXiv 2211.10438) trades the first for the second, so each is measured on its own.

The product is a sum over channels, so its error is one, too: channel k adds x̂_k ŵ_kᵀ − x'_k w'_kᵀ. A channel's *share
of the error* is the squared norm of that divided by the sum over all channels. Channels whose errors happen to cancel
are not credited for it: that would need the error's sign, which is different for every text.

Weights are rounded to nearest here, one scale per output channel. The recipe `w8a8` also makes up for errors of
rounding, which no figure of single channels can show.
"""

from dataclasses import dataclass

import torch
from quasar_kernels.reference import quantize_rows
from torch import Tensor

from quasar_lab.evaluation.activations import Activations, capture
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import projection_of
from quasar_lab.quantization.gptq import quantize_weight
from quasar_lab.quantization.recipes import DEFAULT_ALPHA
from quasar_lab.quantization.smoothing import column_max, o_proj_factors, smoothquant_factors
from quasar_lab.speculative.generation import Prompt
from quasar_lab.support.errors import InputError

GRIDS = ("per token", "per tensor")
"""How many scales the activations have: one for each row, or a single one."""


@dataclass(frozen=True)
class Linear:
    """x f32 [M, K]: input of one linear of the BF16 model; weight f32 [N, K]."""

    model: Decoder
    layer: int
    projection: str
    x: Tensor
    weight: Tensor
    activations: Activations

    @property
    def title(self) -> str:
        return f"Layer {self.layer}, {self.projection}"

    def smoothed(self, alpha: float) -> InputMap:
        """SmoothQuant's factors from this text alone."""
        return InputMap(smoothing_factors(self.model, self.projection, self.x, self.weight, alpha))

    def unmapped(self) -> InputMap:
        """Factors of 1: the input as it is."""
        return InputMap(torch.ones(self.x.shape[1]))

    def mapped(self, quantized: Decoder | None) -> tuple[InputMap, str]:
        """What is done to the input before rounding, and where it comes from: a recipe, or α = 0.5 on this text."""
        if quantized is None:
            return self.smoothed(DEFAULT_ALPHA), f"α = {DEFAULT_ALPHA:g} on this text"
        found = quantized.mappings.get((self.layer, self.projection))
        if found is None:
            return self.unmapped(), f"{quantized.name} rounds this input as it is"
        return found, f"factors{' and rotation' if found.rotation is not None else ''} of {quantized.name}"

    def channel(self, channel: int) -> int:
        """The channel, if there is one of that number. Raises InputError."""
        channels = self.x.shape[1]
        if not 0 <= channel < channels:
            raise InputError(f"channel {channel} of {self.title}; accepted: 0…{channels - 1}")
        return channel


def linear(model: Decoder, layer: int, projection: str, text: Prompt | Activations | None = None) -> Linear:
    """One linear of the BF16 model and its input for a text. Raises InputError on a layer that is not there."""
    projection = projection_of(projection)
    activations = capture(model, text)
    x = activations.at(layer, projection)
    return Linear(model, layer, projection, x, model.checkpoint.projection(layer, projection)[0].float(), activations)


def smoothing_factors(model: Decoder, projection: str, x: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """SmoothQuant's factors s f32 [K] of one linear from the inputs x f32 [M, K] alone, as the recipes choose them."""
    largest, columns = x.abs().amax(dim=0), column_max(weight)
    if projection == "o_proj":
        return o_proj_factors(largest, columns, alpha, model.config)
    return smoothquant_factors(largest, columns, alpha)


def formulas(mapping: InputMap, x: str, weight: str) -> tuple[str, str]:
    """What is rounded instead of x and W, as people write it."""
    names = [f"{x if mapping.shift is None else f'({x} − z)'} / s", f"{weight} · s"]
    names = names if mapping.rotation is None else [f"({name}) R" for name in names]
    return names[0], names[1]


def short(value: float) -> str:
    """Three figures, and no exponent on what people can read without."""
    return f"{value:,.0f}".replace(",", " ") if value >= 1000 else f"{value:.3g}"


def steps(x: Tensor, grid: str) -> Tensor:
    """Distance between two representable values, max|x| / 127: f32 [M], one for each row; of one tensor all are
    equal. Raises InputError on an unknown grid."""
    if grid not in GRIDS:
        raise InputError(f"grid is {grid!r}; accepted: {', '.join(GRIDS)}")
    rows = x if grid == "per token" else x.reshape(1, -1)
    return quantize_rows(rows)[1].expand(x.shape[0])


def round_inputs(x: Tensor, grid: str) -> Tensor:
    """x f32 [M, K] rounded to INT8 and back."""
    scale = steps(x, grid)[:, None]
    return (x / scale).round().clamp(-127, 127) * scale


def round_weights(weight: Tensor) -> Tensor:
    """W f32 [N, K] rounded to INT8 and back, one scale per output channel."""
    quantized, scale = quantize_weight(weight)
    return quantized.float() * scale[:, None]


@dataclass(frozen=True)
class ProductError:
    """Relative errors ‖… − XWᵀ‖ / ‖XWᵀ‖. before: of the mapped product in FP32, nothing rounded to INT8; after: both
    sides in INT8; activations, weights: only that side in INT8."""

    before: float
    after: float
    activations: float
    weights: float


def product_errors(
    x: Tensor, weight: Tensor, mapping: InputMap, grid: str = "per token", starts: tuple[int, ...] = (0,)
) -> list[ProductError]:
    """Errors of one linear under a mapping, x f32 [M, K], weight f32 [N, K]; one result for each of `starts`, counted
    over the rows from there on (1: without the first token)."""
    exact = x @ weight.T
    inputs, columns = mapping.inputs(x), mapping.weight(weight)
    rounded, coarse = round_inputs(inputs, grid), round_weights(columns)
    found = [a @ w.T for a, w in ((inputs, columns), (rounded, coarse), (rounded, columns), (inputs, coarse))]
    moved = mapping.bias(weight, None)
    found = found if moved is None else [y + moved for y in found]
    return [
        ProductError(*(float((y[n:] - exact[n:]).norm() / exact[n:].norm().clamp(min=1e-30)) for y in found))
        for n in starts
    ]


def channel_shares(x: Tensor, weight: Tensor, mapping: InputMap, grid: str = "per token") -> Tensor:
    """Share of the rounding error that each channel of the mapped input brings: f64 [K], sum 1 (zeros without error).

    With dx = x̂ − x' and dw = ŵ − w' of a channel, ‖x̂ ŵᵀ − x' w'ᵀ‖² = ‖x̂‖²‖dw‖² + ‖dx‖²‖w'‖² + 2⟨x̂, dx⟩⟨dw, w'⟩.
    """
    inputs, columns = mapping.inputs(x), mapping.weight(weight)
    rounded, columns = round_inputs(inputs, grid).double(), columns.double()
    dx, dw = rounded - inputs.double(), round_weights(columns.float()).double() - columns
    square = rounded.square().sum(0) * dw.square().sum(0) + dx.square().sum(0) * columns.square().sum(0)
    square = (square + 2 * (rounded * dx).sum(0) * (dw * columns).sum(0)).clamp(min=0)
    return square / square.sum().clamp(min=1e-300)


def exactness(
    model: Decoder,
    layer: int,
    projection: str,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
    grid: str = "per token",
) -> ProductError:
    """‖XWᵀ − (X/s)(W·s)ᵀ‖ / ‖XWᵀ‖ of one linear before rounding, where only FP32's own rounding is left, and after.

    quantized: its factors and rotation; without it, SmoothQuant with α = 0.5 from this text alone.
    """
    part = linear(model, layer, projection, text)
    return product_errors(part.x, part.weight, part.mapped(quantized)[0], grid)[0]
