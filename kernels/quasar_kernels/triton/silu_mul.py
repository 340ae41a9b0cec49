"""silu(gate) · up, number by number; gate and up are the two halves of a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.triton.launch import check, floats, launch, result
from quasar_kernels.triton.overlap import follow

TILE = 1024


@triton.jit
def silu_mul_tile(gate_up, row, channel, F):
    """silu(gate) · up of some channels of a row, f32; zero from channel F on."""
    first = gate_up + row.to(tl.int64) * (2 * F)
    gate = tl.load(first + channel, mask=channel < F, other=0.0).to(tl.float32)
    up = tl.load(first + F + channel, mask=channel < F, other=0.0).to(tl.float32)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _silu_mul(gate_up, out, F: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr):
    follow(OVERLAP)
    tiles: tl.constexpr = (F + TILE - 1) // TILE
    row = tl.program_id(0) // tiles
    channel = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)
    tl.store(out + row.to(tl.int64) * F + channel, silu_mul_tile(gate_up, row, channel, F), mask=channel < F)


def check_gate_up(gate_up: Tensor) -> tuple[int, int]:
    """Rows and the width of each half. Raises TypeError or ValueError, naming what is accepted."""
    check("gate_up", gate_up, (torch.float32, *floats(gate_up)), (None, None))
    rows, width = gate_up.shape
    if width % 2 or width == 0:
        raise ValueError(f"gate_up is {width} wide; accepted: an even width, gate and then up")
    return rows, width // 2


def silu_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """See `reference.silu_mul`."""
    rows, size = check_gate_up(gate_up)
    y = result(out, floats(gate_up), (rows, size), gate_up)
    launch(_silu_mul, rows * triton.cdiv(size, TILE), {"gate_up": gate_up, "out": y, "F": size, "TILE": TILE})
    return y
