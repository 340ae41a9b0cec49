"""Rotation of a row: butterflies in registers, then the small dense factor, in the order that `reference.rotate` fixes.

A row seen as X [P, n] is multiplied by a Walsh-Hadamard matrix from the right, log₂ n steps of a + b, a − b, and by
rotationᵀ from the left, one rank-one update after the other. Products are rounded before they are added: the bits are
the reference's.

Butterflies, constant geometry. Step s pairs the numbers whose indices differ in bit s, which lie in one thread for few
s. So every step pairs neighbours, and then moves the lowest bit of the index to the top: after log₂ n steps each bit
had its turn, in the same order. A thread holds sixteen numbers, so four steps pass before numbers change threads: three
exchanges through shared memory for n = 4096, where pairs of distance 2ˢ took eight (counted in compiled code).

The dense factor needs a row of X in all threads. So between the two a row lies in memory (in the cache of its
multiprocessor), and updates take a tile of whole columns at a time, in place. Where P = 1 a row never leaves the
registers.

What is lost: one program per row, so a wide P on one token leaves most of the device idle.
Source of the geometry: Pease, "An adaptation of the fast Fourier transform for parallel processing", J. ACM 15 (1968).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.reference import hadamard_size
from quasar_kernels.triton.launch import MOST_CHANNELS, check, floats, launch, result, row_tile
from quasar_kernels.triton.overlap import follow

MOST_ROTATION = 256
"""The largest dense factor of a rotation, as in the C++ backend."""


@triton.jit
def magnitude(x):
    """The largest |x| of a tile; infinite where one is NaN, which a maximum would pass over."""
    size = tl.abs(x)
    return tl.max(tl.where(size < float("inf"), size, float("inf")))


@triton.jit
def butterflies(x, SIZE: tl.constexpr, TILE: tl.constexpr):
    """Every SIZE neighbours of x f32 [TILE] times the orthonormal Walsh-Hadamard matrix of that size."""
    x = x * (SIZE**-0.5)
    for _ in tl.static_range(SIZE.bit_length() - 1):
        a, b = tl.split(tl.reshape(x, [TILE // 2, 2]))
        x = tl.reshape(tl.permute(tl.join(a + b, a - b), [1, 0]), [TILE])
    # All bits within SIZE are back in order, above those that say which of its stretches it is.
    return tl.reshape(tl.permute(tl.reshape(x, [SIZE, TILE // SIZE]), [1, 0]), [TILE])


@triton.jit
def mix_line(line, rotation, K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr):
    """Multiplies K numbers f32 at `line`, X [SIDE, K / SIDE] of this program alone, by rotationᵀ from the left, in
    place; returns the `magnitude` of the result."""
    SIZE: tl.constexpr = K // SIDE
    COLUMNS: tl.constexpr = min(SIZE, TILE // SIDE_TILE)
    row = tl.arange(0, SIDE_TILE)
    largest = 0.0
    tl.debug_barrier()  # the line is written by all threads and read by others, here and below
    for begin in range(0, SIZE, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        mixed = tl.zeros([SIDE_TILE, COLUMNS], tl.float32)
        for p in range(SIDE):
            part = tl.load(line + p * SIZE + column)
            factor = tl.load(rotation + p * SIDE + row, mask=row < SIDE, other=0.0)
            mixed += part[None, :] * factor[:, None]
        tl.debug_barrier()
        tl.store(line + row[:, None] * SIZE + column[None, :], mixed, mask=row[:, None] < SIDE)
        largest = tl.maximum(largest, magnitude(mixed))
    tl.debug_barrier()
    return largest


@triton.jit
def _rotate(
    x, rotation, out,
    K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    first = tl.program_id(0).to(tl.int64) * K
    for begin in range(0, K, TILE):
        channel = begin + tl.arange(0, TILE)
        part = tl.load(x + first + channel, mask=channel < K, other=0.0).to(tl.float32)
        tl.store(out + first + channel, butterflies(part, K // SIDE, TILE), mask=channel < K)
    mix_line(out + first, rotation, K, SIDE, SIDE_TILE, TILE)


def rotation_tile(rotation: Tensor, channels: int) -> tuple[dict[str, int], int]:
    """The constants of `mix_line` for a rotation [P, P], and warps. Raises TypeError or ValueError, naming what
    fits."""
    check("rotation", rotation, torch.float32, (None, None))
    size = hadamard_size(rotation, channels, MOST_ROTATION)
    side = rotation.shape[0]
    tile, warps = row_tile(max(min(channels, LINE_TILE), size, side))
    return {"K": channels, "SIDE": side, "SIDE_TILE": triton.next_power_of_2(side), "TILE": tile}, warps


LINE_TILE = MOST_CHANNELS
"""How much of a long row is in registers at a time."""


def rotate(x: Tensor, rotation: Tensor, *, out: Tensor | None = None) -> Tensor:
    """See `reference.rotate`; equal to it bit for bit."""
    check("x", x, floats(x), (None, None))
    rows, size = x.shape
    constants, warps = rotation_tile(rotation, size)
    y = result(out, torch.float32, (rows, size), x)
    launch(_rotate, rows, {"x": x, "rotation": rotation, "out": y, **constants}, warps)
    return y
