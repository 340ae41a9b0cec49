"""Where the large activations are, and what smoothing does to them, in numbers.

## Idea

Two different things are called outliers. A *persistent channel* is large for every token, and smoothing moves it into
the weights. A *massive token* is one token, nearly always the first, with a few enormous values that no other token
has. It is also known as the attention sink. A scale for each token keeps it from hurting its neighbours, but it decides
the calibration maximum of its channels.

So every number here is taken twice, with the first token and without it:

- `outlier_map`: max / median of the channels' largest |x|, for every linear of the model,
- `input_outliers`: the largest |x| of every channel of one linear, before and after a mapping,
- `alpha_sweep`: the output error of one linear against the smoothing strength α,
- `channel_values`: one channel along the text.

## What is lost

The first token is the usual place for massive values, not the only one. Other massive tokens count as "the rest".

## Source

Massive activations, arXiv 2402.17762. SmoothQuant, arXiv 2211.10438.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quasar_lab.evaluation.activations import Activations, capture
from quasar_lab.evaluation.linear_view import InspectedLinear, MappingChoice, inspect_linear
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import PARTS
from quasar_lab.quantization.product_error import ProductError, channel_shares, product_errors
from quasar_lab.quantization.smoothing import column_max
from quasar_lab.speculative.generation import Prompt
from quasar_lab.support.errors import InputError

ORDERS = ("channel", "sorted")
"""Channels by their number, or by their largest |x| before the mapping."""

ALPHAS = tuple(twentieth / 20 for twentieth in range(21))
"""The smoothing strengths of a sweep."""


def max_over_median(largest: Tensor) -> float:
    """How far the largest channel stands out, from the largest |x| of every channel, f32 [K]."""
    return float(largest.max() / largest.median().clamp(min=1e-30))


# Every linear of the model


@dataclass(frozen=True)
class OutlierMap:
    """max / median of the channels' largest |x|, for every layer and projection."""

    layers: list[int]
    """The columns of both tables."""

    projections: list[str]
    """The rows of both tables."""

    all_tokens: list[list[float]]
    """The ratios over all tokens: one row for each projection, one column for each layer."""

    without_first: list[list[float]]
    """The same ratios over all tokens but the first."""

    tokens: int
    """Length of the text."""

    identity: Mapping[str, str]
    """The model, device and backend that the numbers come from."""


def outlier_map(model: Decoder, text: Prompt | Activations | None = None) -> OutlierMap:
    """The ratios of all linears for one text. Raises InputError on a text of a single token."""
    activations = capture(model, text)
    _need_two_tokens(len(activations.pieces))
    layers, projections = list(range(model.config.layers)), list(PARTS)
    return OutlierMap(
        layers=layers,
        projections=projections,
        all_tokens=_ratios(activations, layers, projections, first_row=0),
        without_first=_ratios(activations, layers, projections, first_row=1),
        tokens=len(activations.pieces),
        identity=activations.identity,
    )


def _ratios(
    activations: Activations, layers: Sequence[int], projections: Sequence[str], first_row: int
) -> list[list[float]]:
    """max / median per projection and layer, over the tokens from `first_row` on."""
    return [
        [max_over_median(activations.at(layer, name)[first_row:].abs().amax(dim=0)) for layer in layers]
        for name in projections
    ]


def _need_two_tokens(tokens: int) -> None:
    if tokens < 2:
        raise InputError("the text has one token; accepted: at least two, to show the first apart from the others")


# The channels of one linear


@dataclass(frozen=True)
class ChannelSizes:
    """|x| of every channel of one input, channels in the order they are drawn."""

    first: Tensor
    """|x| of the first token, f32 [K]."""

    others: Tensor | None
    """The largest |x| over the other tokens, f32 [K]; None where the text has one token."""

    others_at: list[int]
    """The position of the token that the largest |x| of `others` belongs to; empty where there are no others."""

    shares: Tensor
    """The share of the rounding error that each channel brings, f64 [K]."""

    median: float
    """The median over the channels of their largest |x|."""

    ratio: float
    """max / median over the channels of their largest |x|."""

    largest: float
    """The largest |x| of all."""

    largest_at: int
    """Where in the drawn order the channel of the largest |x| stands."""

    largest_token: int
    """The position of the token of the largest |x|."""


@dataclass(frozen=True)
class InputOutliers:
    """The input of one linear as it is, and as a mapping changes it before it is rounded."""

    linear: InspectedLinear
    """The linear and its input."""

    choice: MappingChoice
    """The mapping that `after` shows."""

    order: str
    """One of ORDERS."""

    channels: Tensor
    """The number of each channel in the order they are drawn, i64 [K]."""

    before: ChannelSizes
    """The input as it is."""

    after: ChannelSizes
    """The mapped input."""


def input_outliers(
    model: Decoder,
    layer: int,
    projection: str,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
    order: str = "channel",
) -> InputOutliers:
    """The largest |x| of every input channel of one linear, before and after a mapping.

    quantized: its factors and rotation are used. Without it the mapping is SmoothQuant with α = 0.5 from this text
    alone. order: one of ORDERS. Raises InputError on a layer or an order that is not there.
    """
    if order not in ORDERS:
        raise InputError(f"order is {order!r}; accepted: {', '.join(ORDERS)}")
    linear = inspect_linear(model, layer, projection, text)
    largest = linear.x.abs().amax(dim=0)
    channels = torch.argsort(largest, descending=True) if order == "sorted" else torch.arange(len(largest))
    choice = linear.mapped(quantized)
    before, after = (channel_sizes(linear, mapping, channels) for mapping in (linear.unmapped(), choice.mapping))
    return InputOutliers(linear, choice, order, channels, before=before, after=after)


def channel_sizes(linear: InspectedLinear, mapping: InputMap, channels: Tensor) -> ChannelSizes:
    """Sizes and error shares of the mapped input's channels, in the order `channels` i64 [K]."""
    size = mapping.inputs(linear.x).abs()[:, channels]
    others = size[1:].max(dim=0) if size.shape[0] > 1 else None
    largest = size.amax(dim=0)
    at = int(largest.argmax())
    return ChannelSizes(
        first=size[0],
        others=None if others is None else others.values,
        others_at=[] if others is None else (1 + others.indices).tolist(),
        shares=channel_shares(linear.x, linear.weight, mapping)[channels],
        median=float(largest.median()),
        ratio=max_over_median(largest),
        largest=float(largest[at]),
        largest_at=at,
        largest_token=int(size[:, at].argmax()),
    )


# The error of one linear by smoothing strength


@dataclass(frozen=True)
class SweepErrors:
    """Errors of one linear over a group of tokens, at every α."""

    group: str
    """Which tokens the errors are measured over, in words."""

    by_alpha: list[ProductError]
    """The errors at each α of the sweep."""

    unsmoothed: ProductError
    """The errors without smoothing."""

    @property
    def best(self) -> int:
        """Where in the sweep the error of both sides is smallest; the first such place."""
        return min(range(len(self.by_alpha)), key=lambda place: self.by_alpha[place].after)


@dataclass(frozen=True)
class AlphaSweep:
    """The output error of one linear in INT8 against the smoothing strength α."""

    linear: InspectedLinear
    """The linear and its input."""

    grid: str
    """The scales of the activations, one of GRIDS."""

    alphas: list[float]
    """The smoothing strengths."""

    groups: tuple[SweepErrors, SweepErrors]
    """Over all tokens, and without the first."""


def alpha_sweep(
    model: Decoder,
    layer: int,
    projection: str,
    alphas: Sequence[float] = ALPHAS,
    text: Prompt | Activations | None = None,
    grid: str = "per token",
) -> AlphaSweep:
    """The errors of one linear at every α. Raises InputError on a text of a single token.

    The factors always come from all tokens, as in calibration. Only the tokens that the error is measured over differ.
    """
    linear = inspect_linear(model, layer, projection, text)
    _need_two_tokens(linear.x.shape[0])
    found = [product_errors(linear.x, linear.weight, linear.smoothed(alpha), grid, (0, 1)) for alpha in alphas]
    plain = product_errors(linear.x, linear.weight, linear.unmapped(), grid, (0, 1))
    every = SweepErrors("all tokens", [errors[0] for errors in found], plain[0])
    rest = SweepErrors("without the first token", [errors[1] for errors in found], plain[1])
    return AlphaSweep(linear, grid, list(alphas), (every, rest))


# One channel along the text


@dataclass(frozen=True)
class ChannelSide:
    """One channel of the input and of the weight, before or after a mapping."""

    values: Tensor
    """|x| of the channel for every token, f32 [M]."""

    largest: float
    """The largest |x| of the channel."""

    largest_weight: float
    """The largest |w| of the channel."""

    share: float
    """The share of the rounding error that the channel brings, between 0 and 1."""


@dataclass(frozen=True)
class ChannelValues:
    """One channel of one linear, as it is and as a mapping changes it."""

    linear: InspectedLinear
    """The linear and its input."""

    choice: MappingChoice
    """The mapping that `after` shows."""

    number: int
    """The number of the channel."""

    before: ChannelSide
    """The channel as it is."""

    after: ChannelSide
    """The channel of the mapped input."""

    @property
    def factor(self) -> float:
        """The smoothing factor of the channel."""
        return float(self.choice.mapping.factors[self.number])


def channel_values(
    model: Decoder,
    layer: int,
    projection: str,
    number: int | None = None,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
) -> ChannelValues:
    """One channel along the text. number None: the channel with the largest |x|. quantized: as in `input_outliers`.

    Raises InputError on a channel that is not there.
    """
    linear = inspect_linear(model, layer, projection, text)
    number = int(linear.x.abs().amax(dim=0).argmax()) if number is None else linear.channel(number)
    choice = linear.mapped(quantized)
    before, after = (_channel_side(linear, mapping, number) for mapping in (linear.unmapped(), choice.mapping))
    return ChannelValues(linear, choice, number, before=before, after=after)


def _channel_side(linear: InspectedLinear, mapping: InputMap, number: int) -> ChannelSide:
    values = mapping.inputs(linear.x)[:, number].abs()
    return ChannelSide(
        values=values,
        largest=float(values.max()),
        largest_weight=float(column_max(mapping.weight(linear.weight))[number]),
        share=float(channel_shares(linear.x, linear.weight, mapping)[number]),
    )
