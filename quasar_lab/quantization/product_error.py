"""How far rounding moves the product of one linear, by side and by channel.

## Idea

A recipe replaces X by X' = (X / s) R and W by W' = (W · s) R, which leaves the product as it was. Then both are
rounded, to X̂ and Ŵ. The error of the product has three parts:

    X̂ Ŵᵀ − X' W'ᵀ  =  (X̂ − X') W'ᵀ  +  X' (Ŵ − W')ᵀ  +  (X̂ − X') (Ŵ − W')ᵀ

The first part comes from the activations, and outliers make it large. The second part comes from the weights, and
smoothing makes it large. The third part is the product of two small errors. SmoothQuant trades the first part for the
second, so `ProductError` measures each side alone as well as both together.

The product is a sum over channels, so its error is a sum over channels, too. Channel k adds x̂_k ŵ_kᵀ − x'_k w'_kᵀ. The
*share of the error* of a channel is the squared norm of that term, divided by the sum of these squares over all
channels.

## Choice

Weights are rounded to nearest, with one scale for each output channel. Activations have one scale for each token, as in
the W8A8 linear, or a single scale for the whole tensor, which shows why the W8A8 linear does not do that.

## What is lost

Errors of two channels can cancel each other, and a share does not credit a channel for that: whether they cancel
depends on the sign of the error, which is different for every text. The recipe `w8a8` rounds its weights with GPTQ,
which makes the errors of weights compensate each other. No number of a single channel can show this.

## Source

SmoothQuant, arXiv 2211.10438.
"""

from dataclasses import dataclass

from quasar_kernels.reference import quantize_rows
from torch import Tensor

from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.gptq import quantize_weight
from quasar_lab.quantization.layer_error import relative_error
from quasar_lab.support.errors import InputError
from quasar_lab.support.result import Result

GRIDS = ("per token", "per tensor")
"""The scales that the activations have: one for each token, or one for the whole tensor."""


def step_sizes(x: Tensor, grid: str) -> Tensor:
    """Distance between two neighbouring INT8 values, max|x| / 127, for every row: f32 [M] for x f32 [M, K].

    With one scale for the whole tensor all M values are equal. Raises InputError on an unknown grid.
    """
    if grid not in GRIDS:
        raise InputError(f"grid is {grid!r}; accepted: {', '.join(GRIDS)}")
    rows = x if grid == "per token" else x.reshape(1, -1)
    return quantize_rows(rows)[1].expand(x.shape[0])


def round_inputs(x: Tensor, grid: str) -> Tensor:
    """x f32 [M, K] rounded to INT8 and back to f32."""
    scale = step_sizes(x, grid)[:, None]
    return (x / scale).round().clamp(-127, 127) * scale


def round_weights(weight: Tensor) -> Tensor:
    """W f32 [N, K] rounded to INT8 and back to f32, with one scale for each output channel."""
    quantized, scale = quantize_weight(weight)
    return quantized.float() * scale[:, None]


@dataclass(frozen=True)
class ProductError(Result):
    """Relative errors ‖… − XWᵀ‖ / ‖XWᵀ‖ of the product of one linear."""

    before: float
    """The mapped product in FP32, where nothing is rounded to INT8. Only the rounding of FP32 itself is left."""

    after: float
    """Both sides are rounded to INT8."""

    activations: float
    """Only the activations are rounded to INT8."""

    weights: float
    """Only the weights are rounded to INT8."""


def product_errors(
    x: Tensor, weight: Tensor, mapping: InputMap, grid: str = "per token", first_rows: tuple[int, ...] = (0,)
) -> list[ProductError]:
    """Errors of one linear under a mapping, with x f32 [M, K] and weight f32 [N, K].

    There is one result for each of `first_rows`. It counts the rows of x from that one on, so 1 leaves the first token
    out.
    """
    exact = x @ weight.T
    inputs, columns = mapping.inputs(x), mapping.weight(weight)
    rounded, coarse = round_inputs(inputs, grid), round_weights(columns)
    products = [a @ w.T for a, w in ((inputs, columns), (rounded, coarse), (rounded, columns), (inputs, coarse))]
    moved = mapping.bias(weight, None)
    products = products if moved is None else [product + moved for product in products]
    return [
        ProductError(*(relative_error(product[first:], exact[first:]) for product in products)) for first in first_rows
    ]


def channel_shares(x: Tensor, weight: Tensor, mapping: InputMap, grid: str = "per token") -> Tensor:
    """The share of the rounding error that each channel of the mapped input brings: f64 [K].

    The shares add up to 1, or are all zero where there is no error. With dx = x̂ − x' and dw = ŵ − w' of a channel,
    ‖x̂ ŵᵀ − x' w'ᵀ‖² = ‖x̂‖²‖dw‖² + ‖dx‖²‖w'‖² + 2⟨x̂, dx⟩⟨dw, w'⟩, so no product has to be formed.
    """
    inputs, columns = mapping.inputs(x), mapping.weight(weight)
    rounded, columns = round_inputs(inputs, grid).double(), columns.double()
    dx, dw = rounded - inputs.double(), round_weights(columns.float()).double() - columns
    square = rounded.square().sum(0) * dw.square().sum(0) + dx.square().sum(0) * columns.square().sum(0)
    square = (square + 2 * (rounded * dx).sum(0) * (dw * columns).sum(0)).clamp(min=0)
    return square / square.sum().clamp(min=1e-300)
