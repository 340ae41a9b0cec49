"""One linear of the BF16 model together with its input for a text.

## Idea

Every figure about outliers looks at one linear: its input X, its weight W, and a mapping that a recipe applies to both
before they are rounded. `inspect_linear` collects these. What is computed from them stands beside the figure's kind, in
`outliers` and `landscapes`. `exactness` is the shortest of these computations.

## Choice

Without a quantized model, the mapping is SmoothQuant with α = 0.5, with factors from this text alone. Then a figure
needs no calibration and shows what the method does at its best. With a quantized model, the mapping is that of its
recipe, which saw other text.

## Source

SmoothQuant, arXiv 2211.10438.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from quasar_lab.evaluation.activations import Activations, capture
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import projection_of
from quasar_lab.quantization.product_error import ProductError, product_errors
from quasar_lab.quantization.recipes import DEFAULT_ALPHA
from quasar_lab.quantization.smoothing import column_max, o_proj_factors, smoothquant_factors
from quasar_lab.speculative.generation import Prompt
from quasar_lab.support.errors import InputError


@dataclass(frozen=True)
class MappingChoice:
    """What is done to the input of a linear before it is rounded, and why."""

    mapping: InputMap
    """Factors, rotation and shift."""

    origin: str
    """Where the mapping comes from, in words."""

    recipe: str | None
    """The name of the quantized model that was asked for; None where the factors come from the text itself."""


@dataclass(frozen=True)
class InspectedLinear:
    """One linear of the BF16 model with its input for a text."""

    model: Decoder
    """The BF16 model."""

    layer: int
    """The number of the layer, from 0."""

    projection: str
    """The name of the linear in its layer, for example down_proj."""

    x: Tensor
    """The input, f32 [M, K]: one row for each token."""

    weight: Tensor
    """The weight, f32 [N, K]."""

    activations: Activations
    """The inputs of all linears for the text, with the text of its tokens."""

    @property
    def title(self) -> str:
        return f"Layer {self.layer}, {self.projection}"

    def smoothed(self, alpha: float) -> InputMap:
        """SmoothQuant's factors from this text alone."""
        return InputMap(smoothing_factors(self.model, self.projection, self.x, self.weight, alpha))

    def unmapped(self) -> InputMap:
        """The mapping that changes nothing: all factors are 1."""
        return InputMap(torch.ones(self.x.shape[1]))

    def mapped(self, quantized: Decoder | None) -> MappingChoice:
        """The mapping of a quantized model's recipe, or, without such a model, α = 0.5 on this text."""
        if quantized is None:
            return MappingChoice(self.smoothed(DEFAULT_ALPHA), f"α = {DEFAULT_ALPHA:g} on this text", None)
        found = quantized.mappings.get((self.layer, self.projection))
        if found is None:
            return MappingChoice(self.unmapped(), f"{quantized.name} rounds this input as it is", quantized.name)
        parts = "factors" if found.rotation is None else "factors and rotation"
        return MappingChoice(found, f"{parts} of {quantized.name}", quantized.name)

    def channel(self, channel: int) -> int:
        """The number of a channel, checked. Raises InputError where there is no channel of that number."""
        channels = self.x.shape[1]
        if not 0 <= channel < channels:
            raise InputError(f"channel {channel} of {self.title}; accepted: 0…{channels - 1}")
        return channel


def inspect_linear(
    model: Decoder, layer: int, projection: str, text: Prompt | Activations | None = None
) -> InspectedLinear:
    """One linear of the BF16 model and its input for a text. Raises InputError on a layer that is not there."""
    projection = projection_of(projection)
    activations = capture(model, text)
    return InspectedLinear(
        model=model,
        layer=layer,
        projection=projection,
        x=activations.at(layer, projection),
        weight=model.checkpoint.projection(layer, projection)[0].float(),
        activations=activations,
    )


def smoothing_factors(model: Decoder, projection: str, x: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """SmoothQuant's factors s f32 [K] of one linear, chosen as the recipes do, from the inputs x f32 [M, K] alone."""
    largest, columns = x.abs().amax(dim=0), column_max(weight)
    if projection == "o_proj":
        return o_proj_factors(largest, columns, alpha, model.config)
    return smoothquant_factors(largest, columns, alpha)


def exactness(
    model: Decoder,
    layer: int,
    projection: str,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
    grid: str = "per token",
) -> ProductError:
    """How exact the product of one linear is: ‖XWᵀ − (X/s)(W·s)ᵀ‖ / ‖XWᵀ‖ before rounding, and the error after it.

    Before rounding, only the rounding of FP32 itself is left. quantized: its factors and rotation are used. Without it
    the mapping is SmoothQuant with α = 0.5 from this text alone.
    """
    linear = inspect_linear(model, layer, projection, text)
    return product_errors(linear.x, linear.weight, linear.mapped(quantized).mapping, grid)[0]
