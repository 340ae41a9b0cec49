"""Rotary positions: the angles by which queries and keys are turned, in tables as long as the runs need them.

## Idea

Pair i of a head turns by position · θ^(−2i/D), fast for the first pairs and slowly for the last. The product of a query
and a key then depends on how far apart they stand. Llama 3.1 slows the slow pairs further: wavelengths beyond the
context of its first training are stretched by a factor, with a ramp between.

## Choice

Tables are FP32 and computed on the CPU for every device, so that all backends turn by the same numbers. They start
short and double when a pass stands further back than they reach: a model may promise millions of positions, and a run
uses few. A position's row has the same bits in a table of any length.

## What is lost

Every other way to stretch a context. A checkpoint that wants one is refused.

## Source

RoFormer, arXiv 2104.09864.
"""

from math import pi

import torch
from torch import Tensor

from quasar_lab.models.model_config import ModelConfig

SHORTEST = 1024
"""Rows of the first tables."""


class RotaryTables:
    """cos and sin of every position, computed as far as they were asked for. Threads may share them."""

    def __init__(self, config: ModelConfig, device: str = "cpu"):
        self._config, self._device = config, device
        self._tables = torch.empty(0), torch.empty(0)

    def covering(self, rows: int) -> tuple[Tensor, Tensor]:
        """cos and sin f32 [at least `rows`, head_dim / 2], on the device. They stay as they are: longer ones are
        other tensors."""
        tables = self._tables
        if rows > len(tables[0]):
            length = min(max(SHORTEST, 1 << (rows - 1).bit_length()), self._config.context)
            angles = torch.arange(length, dtype=torch.float32)[:, None] * inverse_frequencies(self._config)
            tables = self._tables = angles.cos().to(self._device), angles.sin().to(self._device)
        return tables


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
