"""Symmetric INT8 per row: the largest magnitude becomes 127. The row ops in front of an INT8 product end here.

One program takes one row. A row of up to 16384 numbers stays in registers from its source to its integers, unless a
rotation has a dense factor; then, or when it is longer, it lies in a scratch line of FP32, in the cache of its
multiprocessor, and is passed over tile by tile: once to write it, once for the dense factor, once to round it. Division
is correctly rounded (`div_rn`; Triton's `/` is not), and x + 1.5 · 2²³ − 1.5 · 2²³ rounds half to even, so the integers
are the reference's on either way: a maximum has no order.

What is lost: the line is written and read where registers of another row would be free to hold it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.reference import Transform
from quasar_kernels.triton.launch import check, check_optional, floats, launch, result, row_tile
from quasar_kernels.triton.overlap import follow
from quasar_kernels.triton.rotate import LINE_TILE, butterflies, magnitude, mix_line, rotation_tile

ROUND_HALF_EVEN: tl.constexpr = tl.constexpr(12582912.0)


@triton.jit
def transformed(x, channel, inv_smooth, shift, rotation, K: tl.constexpr, SIDE: tl.constexpr, TILE: tl.constexpr):
    """(x − shift) · inv_smooth for a tile of a row, x f32 [TILE], and of a rotation what needs this tile alone: all of
    it where SIDE is 1, or else the butterflies. Zero stays zero from channel K on."""
    if shift is not None:
        x = x - tl.load(shift + channel, mask=channel < K, other=0.0)
    if inv_smooth is not None:
        x = x * tl.load(inv_smooth + channel, mask=channel < K, other=0.0)
    if rotation is not None:
        x = butterflies(x, K // SIDE, TILE)
        if SIDE == 1:
            x = x * tl.load(rotation)
    return x


@triton.jit
def _step(largest):
    """The scale of a row from its `magnitude`; NaN where a number was NaN or infinite."""
    step = tl.where(largest == 0, 1.0, tl.div_rn(largest, 127.0))
    return tl.where(largest < float("inf"), step, float("nan"))


@triton.jit
def _rounded(x, step):
    y = tl.div_rn(x, step)
    y = tl.where(y == y, y, 0.0)
    y = tl.minimum(tl.maximum(y, -127.0), 127.0)
    return ((y + ROUND_HALF_EVEN) - ROUND_HALF_EVEN).to(tl.int8)


@triton.jit
def quantize_tile(x, q, scale, K: tl.constexpr, TILE: tl.constexpr):
    """Rounds the row of this program, x f32 [TILE], zeros from K on; writes its q and its scale."""
    row = tl.program_id(0)
    channel = tl.arange(0, TILE)
    step = _step(magnitude(x))
    tl.store(q + row.to(tl.int64) * K + channel, _rounded(x, step), mask=channel < K)
    tl.store(scale + row, step)


@triton.jit
def quantize_line(
    line, largest, rotation, q, scale, K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr
):
    """Rounds the row of this program, K numbers f32 at `line` behind `transformed`; writes its q and its scale.

    largest: their `magnitude`, unless a rotation is left to be finished here.
    """
    row = tl.program_id(0)
    if rotation is not None and SIDE > 1:
        step = _step(mix_line(line, rotation, K, SIDE, SIDE_TILE, TILE))
    else:
        tl.debug_barrier()
        step = _step(largest)
    for begin in range(0, K, TILE):
        channel = begin + tl.arange(0, TILE)
        x = tl.load(line + channel, mask=channel < K, other=0.0)
        tl.store(q + row.to(tl.int64) * K + channel, _rounded(x, step), mask=channel < K)
    tl.store(scale + row, step)


@triton.jit
def _quantize_rows(
    x, inv_smooth, shift, rotation, lines, q, scale,
    K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    first = tl.program_id(0).to(tl.int64) * K
    channel = tl.arange(0, TILE)
    if lines is None:
        part = tl.load(x + first + channel, mask=channel < K, other=0.0).to(tl.float32)
        part = transformed(part, channel, inv_smooth, shift, rotation, K, SIDE, TILE)
        quantize_tile(part, q, scale, K, TILE)
    else:
        largest = 0.0
        for begin in range(0, K, TILE):
            part = tl.load(x + first + begin + channel, mask=begin + channel < K, other=0.0).to(tl.float32)
            part = transformed(part, begin + channel, inv_smooth, shift, rotation, K, SIDE, TILE)
            tl.store(lines + first + begin + channel, part, mask=begin + channel < K)
            largest = tl.maximum(largest, magnitude(part))
        quantize_line(lines + first, largest, rotation, q, scale, K, SIDE, SIDE_TILE, TILE)


def quantize_arguments(
    like: Tensor,
    rows: int,
    size: int,
    transform: Transform | None,
    out: tuple[Tensor, Tensor] | None,
) -> tuple[dict[str, Any], int]:
    """What a kernel that ends in a rounded row needs beside its input, results under "q" and "scale"; and its warps.

    "lines", the scratch, is None for a row that stays in registers. Raises TypeError or ValueError when the transform
    or `out` does not fit.
    """
    transform = transform or Transform()
    check_optional("inv_smooth", transform.inv_smooth, torch.float32, (size,))
    check_optional("shift", transform.shift, torch.float32, (size,))
    if transform.rotation is not None:
        constants, warps = rotation_tile(transform.rotation, size)
    else:
        tile, warps = row_tile(min(size, LINE_TILE))
        constants = {"K": size, "SIDE": 1, "SIDE_TILE": 1, "TILE": tile}
    in_registers = constants["SIDE"] == 1 and size <= LINE_TILE
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
