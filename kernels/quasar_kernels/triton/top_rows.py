"""The k largest logits of every row, and log Σ exp, without sorting a vocabulary.

Each program takes a stretch of the vocabulary and picks its k largest, one maximum after the other; a second kernel
picks the k largest of all picks. A logit and its id are one 64-bit integer whose order is that of the floats, then the
lower id: so a maximum decides ties as the definition does. −0 counts as +0; a row with a NaN is marked and filled.

What is found is one table of FP64, which holds ids and FP32 exactly: the host reads it in one transfer.

log Σ exp is a sum of stretches, combined in order.

What is lost: k above 64 is refused.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.triton.launch import check, launch, next_power, result
from quasar_kernels.triton.overlap import follow

TILE = 2048
MOST = 64
NOTHING: tl.constexpr = tl.constexpr(-(2**63))


@triton.jit
def _top_stretch(logits, keys, sums, V, COUNT: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr):
    follow(OVERLAP)
    stretches = tl.cdiv(V, TILE)
    row, stretch = tl.program_id(0) // stretches, tl.program_id(0) % stretches
    index = stretch * TILE + tl.arange(0, TILE)
    x = tl.load(logits + row.to(tl.int64) * V + index, mask=index < V, other=float("-inf"))
    x = tl.where(x == 0, 0.0, x)
    bad = tl.max(tl.where(x == x, 0, 1), axis=0)
    top = tl.max(x, axis=0)
    total = tl.sum(tl.exp(x - tl.where(tl.abs(top) == float("inf"), 0.0, top)), axis=0)
    tl.store(sums + tl.program_id(0).to(tl.int64) * 2, top)
    tl.store(sums + tl.program_id(0).to(tl.int64) * 2 + 1, tl.where(bad != 0, float("nan"), total))
    bits = x.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    key = (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)
    key = tl.where(index < V, key, NOTHING)
    for i in range(COUNT):
        best = tl.max(key, axis=0)
        tl.store(keys + tl.program_id(0).to(tl.int64) * COUNT + i, best)
        key = tl.where(key == best, NOTHING, key)


@triton.jit
def _top_merge(
    keys, sums, table, stretches,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK_S)
    tops = tl.load(sums + (row * stretches + s) * 2, mask=s < stretches, other=float("-inf"))
    parts = tl.load(sums + (row * stretches + s) * 2 + 1, mask=s < stretches, other=0.0)
    bad = tl.max(tl.where(parts == parts, 0, 1), axis=0) != 0
    top = tl.max(tops, axis=0)
    shift = tl.where(tl.abs(top) == float("inf"), 0.0, top)
    # A stretch that is wholly −inf has a sum of 0, which no factor may blow up.
    own = tl.where(tl.abs(tops) == float("inf"), shift, tops)
    total = tl.sum(tl.where(s < stretches, parts * tl.exp(own - shift), 0.0), axis=0)
    line = table + row * (2 * COUNT + 1)
    tl.store(line + 2 * COUNT, tl.where(bad, float("nan"), tl.log(total) + shift).to(tl.float64))
    index = tl.arange(0, BLOCK)
    key = tl.load(keys + row * stretches * COUNT + index, mask=index < stretches * COUNT, other=NOTHING)
    for i in range(COUNT):
        best = tl.max(key, axis=0)
        ordered = (best >> 32).to(tl.int32)
        value = tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)
        tl.store(line + i, tl.where(bad, i, 0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.float64))
        tl.store(line + COUNT + i, tl.where(bad, float("nan"), value).to(tl.float64))
        key = tl.where(key == best, NOTHING, key)


def top_table(logits: Tensor, k: int, *, out: Tensor | None = None) -> Tensor:
    """`top_rows` in one f64 [M, 2k + 1]: ids, values, log Σ exp of every row of logits f32 [M, V]."""
    check("logits", logits, torch.float32, (None, None))
    rows, size = logits.shape
    if not 1 <= k <= min(MOST, size):
        raise ValueError(f"k is {k}; accepted: 1…{min(MOST, size)}")
    table = result(out, torch.float64, (rows, 2 * k + 1), logits)
    stretches = triton.cdiv(size, TILE)
    keys = torch.empty(rows, stretches, k, dtype=torch.int64, device=logits.device)
    sums = torch.empty(rows, stretches, 2, dtype=torch.float32, device=logits.device)
    arguments = {"logits": logits, "keys": keys, "sums": sums, "V": size, "COUNT": k, "TILE": TILE}
    launch(_top_stretch, rows * stretches, arguments, warps=8)
    merged = {"keys": keys, "sums": sums, "table": table, "stretches": stretches, "COUNT": k}
    blocks = {"BLOCK": next_power(stretches * k), "BLOCK_S": next_power(stretches)}
    launch(_top_merge, rows, {**merged, **blocks}, warps=8)
    return table


def top_rows(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.top_rows`; values and ids are equal to it."""
    table = top_table(logits, k)
    return table[:, k : 2 * k].float(), table[:, :k].long(), table[:, 2 * k].float()
