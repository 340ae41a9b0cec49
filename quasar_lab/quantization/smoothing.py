"""Smoothing: moving the difficulty of quantization from activations to weights, exactly.

## Idea

A few input channels of a linear are tens of times larger than the rest. One INT8 scale per token then leaves the other
channels a handful of levels. For any s > 0, x Wᵀ = (x / s)(W · s)ᵀ. So channel k of x can be divided by s_k, and column
k of W multiplied by it, at no error before anything is rounded.

## Choice

SmoothQuant takes s_k = max|x_k|^α / max|W_k|^(1−α). α = 1 gives all activation channels the same range, and α = 0 all
weight columns. A channel that is zero in calibration or in the weights has no difficulty to move: its factor is 1.

In front of o_proj, all query heads that share a value head share its factors, since the division is folded into that
value head (`folding`). They are pooled by the maximum over these heads.

## What is lost

The weights get the difficulty that the activations lose. Which α costs least differs from linear to linear.

## Source

SmoothQuant, arXiv 2211.10438.
"""

import torch
from torch import Tensor

from quasar_lab.models.model_config import ModelConfig


def smoothquant_factors(activation_max: Tensor, weight_max: Tensor, alpha: float) -> Tensor:
    """s f32 [K] from max|x| and max|W| per input channel, both f32 [K].

    The geometric mean over the used channels is 1. It is free, since a common factor moves between the scale of the
    token and the scales of the weights, and fixing it keeps folded norms in a sane range.
    """
    factors = activation_max.double() ** alpha / weight_max.double() ** (1 - alpha)
    used = (activation_max > 0) & (weight_max > 0)
    factors = torch.where(used, factors, torch.ones_like(factors))
    if bool(used.any()):
        factors = torch.where(used, factors / factors[used].log().mean().exp(), factors)
    return factors.clamp(1e-4, 1e4).float()


def column_max(weight: Tensor) -> Tensor:
    """max|W| per input channel: [N, K] → f32 [K]."""
    return weight.abs().amax(dim=0).float()


def pool_repeats(values: Tensor, config: ModelConfig) -> Tensor:
    """Per-channel values of o_proj's input, f32 [heads · D] → f32 [kv_heads · D]: the maximum over the query heads that
    share a value head."""
    repeats = config.heads // config.kv_heads
    return values.reshape(config.kv_heads, repeats, config.head_dim).amax(dim=1).reshape(-1)


def spread_repeats(factors: Tensor, config: ModelConfig) -> Tensor:
    """The inverse layout of `pool_repeats`: f32 [kv_heads · D] → f32 [heads · D]."""
    repeats = config.heads // config.kv_heads
    return factors.reshape(config.kv_heads, 1, config.head_dim).expand(-1, repeats, -1).reshape(-1)


def o_proj_factors(activation_max: Tensor, weight_max: Tensor, alpha: float, config: ModelConfig) -> Tensor:
    """`smoothquant_factors` for o_proj, equal for query heads that share a value head: f32 [heads · D]."""
    pooled = smoothquant_factors(pool_repeats(activation_max, config), pool_repeats(weight_max, config), alpha)
    return spread_repeats(pooled, config)
