"""Rotary positions: the angles by which queries and keys are turned, one table for the whole context.

Pair i of a head turns by position · θ^(−2i/D), fast for the first pairs and slowly for the last, so that a product of
query and key depends on how far apart they stand (RoFormer, arXiv 2104.09864). Llama 3.1 slows the slow pairs further:
wavelengths beyond the context it was first trained on are stretched by a factor, with a ramp between.

Tables are FP32 and computed once, on the CPU for every device, so that all backends turn by the same numbers. What is
lost: a few megabytes for a long context, and every other way to stretch it (a checkpoint that wants one is refused).
"""

from math import pi

import torch
from torch import Tensor

from quasar_lab.models.checkpoint import ModelConfig


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin f32 [context, head_dim / 2]."""
    angles = torch.arange(config.context, dtype=torch.float32)[:, None] * inverse_frequencies(config)
    return angles.cos(), angles.sin()


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """f32 [head_dim / 2]; rope type llama3 slows the low ones."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**steps)
    if config.rope_scaling is None:
        return plain
    factor, original = config.rope_scaling["factor"], config.rope_scaling["original_max_position_embeddings"]
    low, high = config.rope_scaling["low_freq_factor"], config.rope_scaling["high_freq_factor"]
    wavelength = 2 * pi / plain
    blend = (original / wavelength - low) / (high - low)
    smooth = (1 - blend) * plain / factor + blend * plain
    scaled = torch.where(wavelength > original / low, plain / factor, plain)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, smooth, scaled)
