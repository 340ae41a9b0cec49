"""BF16 weights times BF16 rows with FP32 sums: the other verifier's product, written with the same care as the INT8
one.

Same tile of sixteen rows for every width, same split of K, same epilogue; partial FP32 sums are added in the order of
K. FP32 sums are not exact, so a wider pass (prefill) runs as chunks of this very tile: a taller one would sum in
another order, and a row would no longer have the bits of a narrow pass. Neighbouring programs share a weight tile, so
the chunks read weights from memory once.

Where the tile table says "cublas" (the tuning script decides), the product itself is the vendor's, at sixteen rows and
nothing else, chunk by chunk; its FP32 result then gets the same epilogue. It must never run at another height.

A pass of many rows is taken MANY at a time, which bounds the memory in which partial sums meet.

What is lost: prefill is slower than a taller tile would make it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.triton.launch import INTERPRETED, check, check_optional, floats, launch, result
from quasar_kernels.triton.linear_w8a8 import MANY, ROWS, launch_product
from quasar_kernels.triton.overlap import follow, follow_reading
from quasar_kernels.triton.split_k import addends, combine, finish, place, stretch
from quasar_kernels.triton.tiles import linear_tile

FINISH_ROWS, FINISH_COLUMNS = 16, 128


@triton.jit(do_not_specialize=["M"])
def _linear_bf16(
    x, w, bias, residual, out, partials, counters, M, N, K,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, AHEAD: tl.constexpr,
    WIDEN: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    slot, split, first_row, first_column = place(M, ROWS, BLOCK_N, SPLIT)
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a = x + row.to(tl.int64)[:, None] * K + k[None, :]
    b = w + column.to(tl.int64)[None, :] * K + k[:, None]
    first, end = stretch(split, K, BLOCK_K, SPLIT)
    follow_reading(w, first_row, first_column, N, K, first, end, OVERLAP, AHEAD)
    total = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for start in range(first, end, BLOCK_K):
        left = tl.load(a + start, mask=(row[:, None] < M) & (start + k[None, :] < end), other=0.0)
        right = tl.load(b + start, mask=(column[None, :] < N) & (start + k[:, None] < end), other=0.0)
        if WIDEN:  # the interpreter has no BF16 product
            total = tl.dot(left.to(tl.float32), right.to(tl.float32), total, input_precision="ieee")
        else:
            total = tl.dot(left.to(tl.bfloat16), right, total)
    bias_here, residual_here = addends(bias, residual, row, column, M, N)
    last = True
    if SPLIT > 1:
        last, total = combine(total, partials, counters, slot, split, SPLIT, ROWS, BLOCK_N)
    if last:
        finish(total, bias_here, residual_here, out, row, column, M, N)


@triton.jit(do_not_specialize=["M"])
def _finish(y, bias, residual, out, M, N, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAP: tl.constexpr):
    follow(OVERLAP)
    tiles = tl.cdiv(N, BLOCK_N)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row[:, None] < M) & (column[None, :] < N)
    product = tl.load(y + row.to(tl.int64)[:, None] * N + column[None, :], mask=inside, other=0.0)
    bias_here, residual_here = addends(bias, residual, row, column, M, N)
    finish(product, bias_here, residual_here, out, row, column, M, N)


def pack_bf16(w: Tensor) -> Tensor:
    """bf16 [N, K] in the layout that `linear_bf16` reads: as it is. Raises TypeError or ValueError unless it is dense
    and on the device."""
    check("w", w, torch.bfloat16, (None, None))
    return w


def linear_bf16(
    x: Tensor, w: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """See `reference.linear_bf16`; x is rounded to BF16 first. `out` may be `residual`."""
    check("x", x, floats(x), (None, None))
    rows, inputs = x.shape
    check("w", w, torch.bfloat16, (None, inputs))
    outputs = w.shape[0]
    check_optional("bias", bias, torch.float32, (outputs,))
    check_optional("residual", residual, torch.float32, (rows, outputs))
    y = result(out, torch.float32, (rows, outputs), x)
    if rows > MANY:
        for first in range(0, rows, MANY):
            some = slice(first, first + MANY)
            linear_bf16(x[some], w, bias, None if residual is None else residual[some], out=y[some])
        return y
    tile = linear_tile("linear_bf16", outputs, inputs, x.device)
    if tile["engine"] == "cublas":
        _vendor_product(x, w, bias, residual, y)
    else:
        operands = {"x": x, "w": w}
        launch_product(_linear_bf16, torch.float32, operands, bias, residual, y, w, tile, WIDEN=INTERPRETED)
    return y


def _vendor_product(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None, y: Tensor) -> None:
    """cuBLAS on chunks of exactly ROWS rows, zero padded, FP32 out; then the epilogue of the other engine."""
    rows, outputs = y.shape
    padded = torch.zeros(triton.cdiv(rows, ROWS) * ROWS, x.shape[1], dtype=torch.bfloat16, device=x.device)
    padded[:rows] = x
    product = torch.empty(padded.shape[0], outputs, dtype=torch.float32, device=x.device)
    for start in range(0, padded.shape[0], ROWS):
        chunk = slice(start, start + ROWS)
        torch.mm(padded[chunk], w.T, out_dtype=torch.float32, out=product[chunk])
    programs = triton.cdiv(rows, FINISH_ROWS) * triton.cdiv(outputs, FINISH_COLUMNS)
    arguments = {"y": product, "bias": bias, "residual": residual, "out": y, "M": rows, "N": outputs}
    launch(_finish, programs, {**arguments, "ROWS": FINISH_ROWS, "BLOCK_N": FINISH_COLUMNS})
