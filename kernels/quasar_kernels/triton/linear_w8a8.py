"""INT8 × INT8 → INT32 on the tensor cores, then scales, bias and residual in the same kernel.

At decode a product is bound by reading its weights: one row or sixteen cost about the same, so every width 1…16 runs
the same sixteen-row tile, unused rows masked, and a token's row cannot depend on its company. K is split by shape
(`split_k.py`); INT32 sums are exact, and dequantizing comes after the last of them.

A pass of more rows (prefill) takes taller tiles: exact sums have the same bits in any tile. Neighbouring programs share
a weight tile, so weights are read from memory once.

What is lost: K up to 133 000 (INT32); the weights stay row-major as they come, so that one copy serves both tiles; and
where K is no multiple of 16 they are loaded in small pieces and not ahead of time (no model of the catalogue has such a
K).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.triton.launch import ALL_REGISTERS, check, check_optional, launch, result
from quasar_kernels.triton.overlap import ahead, follow_reading
from quasar_kernels.triton.scratch import scratch
from quasar_kernels.triton.split_k import addends, combine, finish, place, stretch
from quasar_kernels.triton.tiles import linear_tile

ROWS = 16
MOST_INPUTS = 133_000
MANY = 256
"""Rows that need no split of K to occupy a GPU."""


@triton.jit(do_not_specialize=["M"])
def _linear_w8a8(
    q, scale, wq, wscale, bias, residual, out, partials, counters, M, N, K,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, AHEAD: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    slot, split, first_row, first_column = place(M, ROWS, BLOCK_N, SPLIT)
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a = q + row.to(tl.int64)[:, None] * K + k[None, :]
    b = wq + column.to(tl.int64)[None, :] * K + k[:, None]
    first, end = stretch(split, K, BLOCK_K, SPLIT)
    follow_reading(wq, first_row, first_column, N, K, first, end, OVERLAP, AHEAD)
    total = tl.zeros([ROWS, BLOCK_N], tl.int32)
    for start in range(first, end, BLOCK_K):
        x = tl.load(a + start, mask=(row[:, None] < M) & (start + k[None, :] < end), other=0)
        w = tl.load(b + start, mask=(column[None, :] < N) & (start + k[:, None] < end), other=0)
        total = tl.dot(x, w, total, out_dtype=tl.int32)
    rows = tl.load(scale + row, mask=row < M, other=0.0)
    columns = tl.load(wscale + column, mask=column < N, other=0.0)
    bias_here, residual_here = addends(bias, residual, row, column, M, N)
    last = True
    if SPLIT > 1:
        last, total = combine(total, partials, counters, slot, split, SPLIT, ROWS, BLOCK_N)
    if last:
        finish(
            total.to(tl.float32) * (rows[:, None] * columns[None, :]), bias_here, residual_here, out, row, column, M, N
        )


def pack_w8a8(wq: Tensor) -> Tensor:
    """int8 [N, K] in the layout that `linear_w8a8` reads: as it is. Raises TypeError or ValueError unless it is dense
    and on the device."""
    check("wq", wq, torch.int8, (None, None))
    return wq


def linear_w8a8(
    q: Tensor,
    scale: Tensor,
    wq: Tensor,
    wscale: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """See `reference.linear_w8a8`; equal to it bit for bit. `out` may be `residual`."""
    check("q", q, torch.int8, (None, None))
    rows, inputs = q.shape
    check("wq", wq, torch.int8, (None, inputs))
    outputs = wq.shape[0]
    if not 1 <= inputs <= MOST_INPUTS:
        raise ValueError(f"K is {inputs}; accepted: 1…{MOST_INPUTS}, so that INT32 sums are exact")
    check("scale", scale, torch.float32, (rows,))
    check("wscale", wscale, torch.float32, (outputs,))
    check_optional("bias", bias, torch.float32, (outputs,))
    check_optional("residual", residual, torch.float32, (rows, outputs))
    y = result(out, torch.float32, (rows, outputs), q)
    tile = linear_tile("linear_w8a8" if rows <= ROWS else "linear_w8a8_wide", outputs, inputs, q.device)
    if rows > MANY:
        tile = {**tile, "split_k": 1}
    operands = {"q": q, "scale": scale, "wq": wq, "wscale": wscale}
    launch_product(_linear_w8a8, torch.int32, operands, bias, residual, y, wq, tile)
    return y


def launch_product(
    kernel: Any,
    sums: torch.dtype,
    operands: dict[str, Tensor],
    bias: Tensor | None,
    residual: Tensor | None,
    y: Tensor,
    weight: Tensor,
    tile: dict[str, Any],
    **more: Any,
) -> None:
    """Launches a product over row chunks × output tiles × splits, with the scratch, of dtype `sums`, where splits
    meet."""
    (rows, outputs), inputs = y.shape, weight.shape[1]
    height, width, split = tile["rows"], tile["block_n"], tile["split_k"]
    slots = triton.cdiv(rows, height) * triton.cdiv(outputs, width)
    partials, counters = None, None
    if split > 1:
        area, counters = scratch(y.device, slots * split * height * width, slots)
        partials = area.view(sums)
    arguments = {
        **operands,
        "bias": bias,
        "residual": residual,
        "out": y,
        "partials": partials,
        "counters": counters,
        "M": rows,
        "N": outputs,
        "K": inputs,
        "ROWS": height,
        "BLOCK_N": width,
        "BLOCK_K": tile["block_k"],
        "SPLIT": split,
        "AHEAD": ahead(weight),
        **more,
    }
    # Rows that do not start at 16 bytes are loaded in small pieces, each with its own address.
    registers = ALL_REGISTERS if inputs % 16 else None
    launch(kernel, slots * split, arguments, tile["warps"], tile["stages"], registers)
