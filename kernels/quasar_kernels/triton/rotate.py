"""Rotation of a row: butterflies in registers, then the small dense factor, in the order that `reference.rotate` fixes.

A row seen as X [P, n] is multiplied by a Walsh-Hadamard matrix from the right, log₂ n steps of a + b, a − b, and by
rotationᵀ from the left, one rank-one update after the other. A butterfly exchanges registers between threads; an update
needs a row of X in all of them. So the row lies in memory (in the cache of its multiprocessor) and is worked on in
place, a tile at a time: first tiles of whole rows of X, then tiles of whole columns. Products are rounded before they
are added: the bits are the reference's.

What is lost: one program per row, so a wide P on one token leaves most of the device idle.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.reference import hadamard_size
from quasar_kernels.triton.launch import check, floats, launch, result, row_tile

MOST_ROTATION = 256
"""The largest dense factor of a rotation, as in the C++ backend."""


@triton.jit
def rotate_line(line, rotation, K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr):
    """Rotates K numbers f32 at `line`, which belong to this program alone, in place."""
    SIZE: tl.constexpr = K // SIDE
    COLUMNS: tl.constexpr = min(SIZE, TILE // SIDE_TILE)
    tl.debug_barrier()  # the line is written by all threads and read by others, here and below
    for begin in range(0, K, TILE):
        channel = begin + tl.arange(0, TILE)
        x = tl.load(line + channel, mask=channel < K, other=0.0) * (SIZE**-0.5)
        for step in tl.static_range(SIZE.bit_length() - 1):
            pairs = tl.reshape(x, [TILE // (2 << step), 2, 1 << step])
            a, b = tl.split(tl.permute(pairs, [0, 2, 1]))
            x = tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 2, 1]), [TILE])
        tl.store(line + channel, x, mask=channel < K)
    tl.debug_barrier()
    row = tl.arange(0, SIDE_TILE)
    for begin in range(0, SIZE, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        mixed = tl.zeros([SIDE_TILE, COLUMNS], tl.float32)
        for p in range(SIDE):
            part = tl.load(line + p * SIZE + column)
            factor = tl.load(rotation + p * SIDE + row, mask=row < SIDE, other=0.0)
            mixed += part[None, :] * factor[:, None]
        tl.debug_barrier()
        tl.store(line + row[:, None] * SIZE + column[None, :], mixed, mask=row[:, None] < SIDE)
    tl.debug_barrier()


@triton.jit
def _rotate(x, rotation, out, K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * K
    for begin in range(0, K, TILE):
        channel = begin + tl.arange(0, TILE)
        part = tl.load(x + first + channel, mask=channel < K, other=0.0).to(tl.float32)
        tl.store(out + first + channel, part, mask=channel < K)
    rotate_line(out + first, rotation, K, SIDE, SIDE_TILE, TILE)


def rotation_tile(rotation: Tensor, channels: int) -> tuple[dict[str, int], int]:
    """The constants of `rotate_line` for a rotation [P, P], and warps. Raises TypeError or ValueError, naming what
    fits."""
    check("rotation", rotation, torch.float32, (None, None))
    size = hadamard_size(rotation, channels, MOST_ROTATION)
    side = rotation.shape[0]
    tile, warps = row_tile(max(min(channels, LINE_TILE), size, side))
    return {"K": channels, "SIDE": side, "SIDE_TILE": triton.next_power_of_2(side), "TILE": tile}, warps


LINE_TILE = 8192
"""How much of a long row is in registers at a time."""


def rotate(x: Tensor, rotation: Tensor, *, out: Tensor | None = None) -> Tensor:
    """See `reference.rotate`; equal to it bit for bit."""
    check("x", x, floats(x), (None, None))
    rows, size = x.shape
    constants, warps = rotation_tile(rotation, size)
    y = result(out, torch.float32, (rows, size), x)
    launch(_rotate, rows, {"x": x, "rotation": rotation, "out": y, **constants}, warps)
    return y
