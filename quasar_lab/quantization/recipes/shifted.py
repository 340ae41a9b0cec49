"""Channels are centred first, then divided by SmoothQuant's factors.

## Idea

A channel whose values lie far to one side of zero wastes half of its INT8 levels. Shifting it by its centre z is exact:
x Wᵀ + b = (x − z) Wᵀ + (b + W z). The centred range then takes the place of max|x| in SmoothQuant's formula.

## Choice

z is the mean over tokens, position 0 apart: the attention sink is not what a channel is centred on. In front of o_proj
the shift is folded into the bias of the values; elsewhere it runs online, fused with the rounding (`folding`).

## Source

Outlier Suppression+, arXiv 2304.09145.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import ModelConfig
from quasar_lab.quantization.recipes.base import AlphaRecipe, CalibratedLinear
from quasar_lab.quantization.recipes.smoothquant import linear_factors
from quasar_lab.quantization.smoothing import spread_repeats


def centred_max(low: Tensor, high: Tensor, shift: Tensor) -> Tensor:
    """max|x − z| per channel from the lowest and highest x and z, all f32 [K]."""
    return torch.maximum(high - shift, shift - low)


def shared_shift(mean: Tensor, config: ModelConfig) -> Tensor:
    """Centres of o_proj's input, f32 [heads · D], from the means: one for all query heads that share a value head, as
    it folds into that head's bias."""
    repeats = config.heads // config.kv_heads
    means = mean.reshape(config.kv_heads, repeats, config.head_dim).mean(dim=1)
    return spread_repeats(means.reshape(-1), config)


def shifted_map(linear: CalibratedLinear, alpha: float) -> InputMap:
    """The map of one linear for one α."""
    channels, config = linear.channels, linear.repeated_heads
    shift = channels.mean if config is None else shared_shift(channels.mean, config)
    largest = centred_max(channels.low, channels.high, shift)
    return InputMap(linear_factors(linear, largest, alpha), shift=shift)


@dataclass(frozen=True)
class Shifted(AlphaRecipe):
    """One α, kept where it helps."""

    name = "w8a8-shifted"
    saved_as = "shifted"
    place = 4
    summary = "Channels are centred first, then divided by SmoothQuant's factors, α 0.5 by default."

    def propose(self, linear: CalibratedLinear) -> Sequence[InputMap]:
        return [shifted_map(linear, self.alpha)]
