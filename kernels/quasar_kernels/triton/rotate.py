"""Rotation of a row: butterflies in registers, then the small dense factor, in the order that `reference.rotate` fixes.

A row seen as X [P, n] is multiplied by a Walsh-Hadamard matrix from the right, log₂ n steps of a + b, a − b, and by
rotationᵀ from the left, one rank-one update after the other. The butterflies exchange registers between threads; the
updates need each row p of X by all threads, so X takes a round trip through a scratch row in global memory (the L1
cache of the same multiprocessor). Products are rounded before they are added: the bits are the reference's.

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
def rotate_tile(x, rotation, scratch, K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """x f32 [BLOCK], a row of K channels and zeros behind them → the rotated row, f32 [BLOCK]. scratch: K numbers that
    belong to this program alone."""
    SIZE: tl.constexpr = K // SIDE
    x = x * (SIZE**-0.5)
    for step in tl.static_range(SIZE.bit_length() - 1):
        pairs = tl.reshape(x, [BLOCK // (2 << step), 2, 1 << step])
        a, b = tl.split(tl.permute(pairs, [0, 2, 1]))
        x = tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 2, 1]), [BLOCK])
    channel = tl.arange(0, BLOCK)
    tl.store(scratch + channel, x, mask=channel < K)
    tl.debug_barrier()  # every thread's part of the row is there before any is read
    row, column = tl.arange(0, BLOCK // SIZE), tl.arange(0, SIZE)
    mixed = tl.zeros([BLOCK // SIZE, SIZE], tl.float32)
    for p in range(SIDE):
        part = tl.load(scratch + p * SIZE + column)
        factor = tl.load(rotation + p * SIDE + row, mask=row < SIDE, other=0.0)
        mixed += part[None, :] * factor[:, None]
    return tl.reshape(mixed, [BLOCK])


@triton.jit
def _rotate(x, rotation, scratch, out, K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * K
    channel = tl.arange(0, BLOCK)
    row = tl.load(x + first + channel, mask=channel < K, other=0.0).to(tl.float32)
    row = rotate_tile(row, rotation, scratch + first, K, SIDE, BLOCK)
    tl.store(out + first + channel, row, mask=channel < K)


def check_rotation(rotation: Tensor, channels: int) -> int:
    """P of a rotation [P, P]. Raises TypeError or ValueError, naming what fits."""
    check("rotation", rotation, torch.float32, (None, None))
    hadamard_size(rotation, channels, MOST_ROTATION)
    return rotation.shape[0]


def rotate(x: Tensor, rotation: Tensor, *, out: Tensor | None = None) -> Tensor:
    """See `reference.rotate`; equal to it bit for bit."""
    check("x", x, floats(x), (None, None))
    rows, size = x.shape
    side = check_rotation(rotation, size)
    y = result(out, torch.float32, (rows, size), x)
    block, warps = row_tile(size)
    scratch = torch.empty(rows, size, dtype=torch.float32, device=x.device)
    launch(
        _rotate,
        rows,
        {"x": x, "rotation": rotation, "scratch": scratch, "out": y, "K": size, "SIDE": side, "BLOCK": block},
        warps,
    )
    return y
