"""Rows of the embedding table by token ids that lie on the device: where a pass enters the residual stream.

An id outside the table gives a row of NaN: the host cannot check an id it never sees, and NaN shows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.triton.launch import check, launch, result
from quasar_kernels.triton.overlap import follow

TILE = 1024


@triton.jit
def _embed_rows(table, ids, out, V, K: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr):
    follow(OVERLAP)
    tiles: tl.constexpr = (K + TILE - 1) // TILE
    row = tl.program_id(0) // tiles
    channel = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)
    token = tl.load(ids + row).to(tl.int64)
    known = (token >= 0) & (token < V)
    x = tl.load(table + token * K + channel, mask=channel < tl.where(known, K, 0), other=0.0).to(tl.float32)
    x = tl.where(known, x, float("nan"))
    tl.store(out + row.to(tl.int64) * K + channel, x, mask=channel < K)


def embed_rows(table: Tensor, ids: Tensor, *, out: Tensor | None = None) -> Tensor:
    """table bf16 [V, K], ids i32 or i64 [M] → table[ids] in FP32, [M, K]; NaN for an id outside 0…V − 1."""
    check("table", table, torch.bfloat16, (None, None))
    check("ids", ids, (torch.int32, torch.int64), (None,))
    vocabulary, size = table.shape
    rows = ids.shape[0]
    y = result(out, torch.float32, (rows, size), table)
    launch(
        _embed_rows,
        rows * triton.cdiv(size, TILE),
        {"table": table, "ids": ids, "out": y, "V": vocabulary, "K": size, "TILE": TILE},
    )
    return y
