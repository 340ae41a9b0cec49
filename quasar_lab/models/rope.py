"""Rotary positions: the angles by which queries and keys are turned, one table for the whole context.

## Idea

Pair i of a head turns by position · θ^(−2i/D), fast for the first pairs and slowly for the last. The product of a query
and a key then depends on how far apart they stand. Llama 3.1 slows the slow pairs further: wavelengths beyond the
context of its first training are stretched by a factor, with a ramp between.

## Choice

Tables are FP32 and computed once, on the CPU for every device, so that all backends turn by the same numbers.

## What is lost

A few megabytes for a long context, and every other way to stretch it. A checkpoint that wants one is refused.

## Source

RoFormer, arXiv 2104.09864.
"""

from math import pi

import torch
from torch import Tensor

from quasar_lab.models.model_config import ModelConfig


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin f32 [context, head_dim / 2]."""
    angles = torch.arange(config.context, dtype=torch.float32)[:, None] * inverse_frequencies(config)
    return angles.cos(), angles.sin()


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """f32 [head_dim / 2]; rope type llama3 slows the low ones."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**steps)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    original = scaling.original_max_position_embeddings
    low = scaling.low_freq_factor
    high = scaling.high_freq_factor
    wavelength = 2 * pi / plain
    blend = (original / wavelength - low) / (high - low)
    smooth = (1 - blend) * plain / scaling.factor + blend * plain
    scaled = torch.where(wavelength > original / low, plain / scaling.factor, plain)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, smooth, scaled)
