"""Symmetric INT8 per row: the largest magnitude becomes 127. The row ops in front of an INT8 product end here.

One program holds one row in registers: it is read once, transformed, its largest magnitude found, rounded, written.
Division is correctly rounded (`div_rn`; Triton's `/` is not), and x + 1.5 · 2²³ − 1.5 · 2²³ rounds half to even, so the
integers are the reference's.

What is lost: a row of more than 32768 channels is refused.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.reference import Transform
from quasar_kernels.triton.launch import check, check_optional, floats, launch, result, row_tile
from quasar_kernels.triton.rotate import check_rotation, rotate_tile

ROUND_HALF_EVEN: tl.constexpr = tl.constexpr(12582912.0)


@triton.jit
def quantize_tile(
    x, inv_smooth, shift, rotation, scratch, q, scale, K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """Transforms and rounds the row x f32 [BLOCK] (zeros from K on) of this program; writes its q and its scale."""
    row = tl.program_id(0)
    first = row.to(tl.int64) * K
    channel = tl.arange(0, BLOCK)
    inside = channel < K
    if shift is not None:
        x = x - tl.load(shift + channel, mask=inside, other=0.0)
    if inv_smooth is not None:
        x = x * tl.load(inv_smooth + channel, mask=inside, other=0.0)
    if rotation is not None:
        x = rotate_tile(x, rotation, scratch + first, K, SIDE, BLOCK)
    size = tl.abs(x)
    top = tl.max(size, axis=0)
    bad = tl.max(tl.where(size < float("inf"), 0, 1), axis=0)  # NaN is not below infinity either
    step = tl.where(top == 0, 1.0, tl.div_rn(top, 127.0))
    step = tl.where(bad != 0, float("nan"), step)
    y = tl.div_rn(x, step)
    y = tl.where(y == y, y, 0.0)
    y = tl.minimum(tl.maximum(y, -127.0), 127.0)
    y = (y + ROUND_HALF_EVEN) - ROUND_HALF_EVEN
    tl.store(q + first + channel, y.to(tl.int8), mask=inside)
    tl.store(scale + row, step)


@triton.jit
def _quantize_rows(
    x, inv_smooth, shift, rotation, scratch, q, scale, K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr
):
    channel = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0).to(tl.int64) * K + channel, mask=channel < K, other=0.0).to(tl.float32)
    quantize_tile(row, inv_smooth, shift, rotation, scratch, q, scale, K, SIDE, BLOCK)


def quantize_arguments(
    like: Tensor, rows: int, size: int, transform: Transform | None, out: tuple[Tensor, Tensor] | None
) -> tuple[dict[str, object], int]:
    """What a kernel that ends in `quantize_tile` needs beside its input, results under "q" and "scale"; and its warps.

    Raises TypeError or ValueError when the transform or `out` does not fit.
    """
    transform = transform or Transform()
    check_optional("inv_smooth", transform.inv_smooth, torch.float32, (size,))
    check_optional("shift", transform.shift, torch.float32, (size,))
    rotation, side, scratch = transform.rotation, 1, None
    if rotation is not None:
        side = check_rotation(rotation, size)
        scratch = torch.empty(rows, size, dtype=torch.float32, device=like.device)
    q, scale = out or (None, None)
    block, warps = row_tile(size)
    arguments = {
        "inv_smooth": transform.inv_smooth,
        "shift": transform.shift,
        "rotation": rotation,
        "scratch": scratch,
        "q": result(q, torch.int8, (rows, size), like),
        "scale": result(scale, torch.float32, (rows,), like),
        "K": size,
        "SIDE": side,
        "BLOCK": block,
    }
    return arguments, warps


def quantize_rows(
    x: Tensor, transform: Transform | None = None, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """See `reference.quantize_rows`; q and scale are equal to it, whatever the transform."""
    check("x", x, floats(x), (None, None))
    arguments, warps = quantize_arguments(x, *x.shape, transform, out)
    launch(_quantize_rows, x.shape[0], {"x": x, **arguments}, warps)
    return arguments["q"], arguments["scale"]
