"""Symmetric INT8 per row: the largest magnitude becomes 127. The row ops in front of an INT8 product end here.

One program takes one row. A short row without rotation stays in registers from its source to its integers; a longer or
rotated one lies in a scratch line of FP32, in the cache of its multiprocessor, and is passed over tile by tile.
Division is correctly rounded (`div_rn`; Triton's `/` is not), and x + 1.5 · 2²³ − 1.5 · 2²³ rounds half to even, so the
integers are the reference's on either way: a maximum has no order.

What is lost: the scratch line is a second pass over the row where its shift and smoothing are all there is to do.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.reference import Transform
from quasar_kernels.triton.launch import check, check_optional, floats, launch, result, row_tile
from quasar_kernels.triton.rotate import LINE_TILE, rotate_line, rotation_tile

ROUND_HALF_EVEN: tl.constexpr = tl.constexpr(12582912.0)


@triton.jit
def smoothed(x, channel, inv_smooth, shift, K: tl.constexpr):
    """(x − shift) · inv_smooth for some channels of a row; zero stays zero from channel K on."""
    if shift is not None:
        x = x - tl.load(shift + channel, mask=channel < K, other=0.0)
    if inv_smooth is not None:
        x = x * tl.load(inv_smooth + channel, mask=channel < K, other=0.0)
    return x


@triton.jit
def _step(largest, unbounded):
    """The scale of a row from its largest magnitude; NaN where a number was NaN or infinite."""
    step = tl.where(largest == 0, 1.0, tl.div_rn(largest, 127.0))
    return tl.where(unbounded != 0, float("nan"), step)


@triton.jit
def _rounded(x, step):
    y = tl.div_rn(x, step)
    y = tl.where(y == y, y, 0.0)
    y = tl.minimum(tl.maximum(y, -127.0), 127.0)
    return ((y + ROUND_HALF_EVEN) - ROUND_HALF_EVEN).to(tl.int8)


@triton.jit
def _unbounded(size):
    return tl.where(size < float("inf"), 0, 1)  # NaN is not below infinity either


@triton.jit
def quantize_tile(x, q, scale, K: tl.constexpr, TILE: tl.constexpr):
    """Rounds the row of this program, x f32 [TILE], zeros from K on; writes its q and its scale."""
    row = tl.program_id(0)
    channel = tl.arange(0, TILE)
    size = tl.abs(x)
    step = _step(tl.max(size, axis=0), tl.max(_unbounded(size), axis=0))
    tl.store(q + row.to(tl.int64) * K + channel, _rounded(x, step), mask=channel < K)
    tl.store(scale + row, step)


@triton.jit
def quantize_line(
    line, rotation, q, scale, K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr
):
    """Rotates and rounds the row of this program, K numbers f32 at `line`; writes its q and its scale."""
    row = tl.program_id(0)
    if rotation is not None:
        rotate_line(line, rotation, K, SIDE, SIDE_TILE, TILE)
    else:
        tl.debug_barrier()
    largest, unbounded = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.int32)
    for begin in range(0, K, TILE):
        channel = begin + tl.arange(0, TILE)
        size = tl.abs(tl.load(line + channel, mask=channel < K, other=0.0))
        largest, unbounded = tl.maximum(largest, size), tl.maximum(unbounded, _unbounded(size))
    step = _step(tl.max(largest, axis=0), tl.max(unbounded, axis=0))
    for begin in range(0, K, TILE):
        channel = begin + tl.arange(0, TILE)
        x = tl.load(line + channel, mask=channel < K, other=0.0)
        tl.store(q + row.to(tl.int64) * K + channel, _rounded(x, step), mask=channel < K)
    tl.store(scale + row, step)


@triton.jit
def _quantize_rows(
    x, inv_smooth, shift, rotation, lines, q, scale,
    K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * K
    channel = tl.arange(0, TILE)
    if lines is None:
        part = tl.load(x + first + channel, mask=channel < K, other=0.0).to(tl.float32)
        quantize_tile(smoothed(part, channel, inv_smooth, shift, K), q, scale, K, TILE)
    else:
        for begin in range(0, K, TILE):
            part = tl.load(x + first + begin + channel, mask=begin + channel < K, other=0.0).to(tl.float32)
            part = smoothed(part, begin + channel, inv_smooth, shift, K)
            tl.store(lines + first + begin + channel, part, mask=begin + channel < K)
        quantize_line(lines + first, rotation, q, scale, K, SIDE, SIDE_TILE, TILE)


def quantize_arguments(
    like: Tensor,
    rows: int,
    size: int,
    transform: Transform | None,
    out: tuple[Tensor, Tensor] | None,
    longest: int = LINE_TILE,
) -> tuple[dict[str, Any], int]:
    """What a kernel that ends in a rounded row needs beside its input, results under "q" and "scale"; and its warps.

    "lines", the scratch, is None for a row of at most `longest` numbers without rotation. Raises TypeError or
    ValueError when the transform or `out` does not fit.
    """
    transform = transform or Transform()
    check_optional("inv_smooth", transform.inv_smooth, torch.float32, (size,))
    check_optional("shift", transform.shift, torch.float32, (size,))
    if transform.rotation is not None:
        constants, warps = rotation_tile(transform.rotation, size)
    else:
        tile, warps = row_tile(min(size, longest))
        constants = {"K": size, "SIDE": 1, "SIDE_TILE": 1, "TILE": tile}
    in_registers = transform.rotation is None and size <= longest
    q, scale = out or (None, None)
    arguments = {
        "inv_smooth": transform.inv_smooth,
        "shift": transform.shift,
        "rotation": transform.rotation,
        "lines": None if in_registers else torch.empty(rows, size, dtype=torch.float32, device=like.device),
        "q": result(q, torch.int8, (rows, size), like),
        "scale": result(scale, torch.float32, (rows,), like),
        **constants,
    }
    return arguments, warps


def quantize_rows(
    x: Tensor, transform: Transform | None = None, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """See `reference.quantize_rows`; q and scale are equal to it, whatever the transform."""
    check("x", x, floats(x), (None, None))
    rows, size = x.shape
    arguments, warps = quantize_arguments(x, rows, size, transform, out)
    launch(_quantize_rows, rows, {"x": x, **arguments}, warps)
    return arguments["q"], arguments["scale"]
