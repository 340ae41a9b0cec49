"""A product whose inputs K are shared out among several programs, and one result that does not depend on which of them
is last.

A skinny product has few output tiles: 4096 outputs in tiles of 64 are 64 programs for 132 multiprocessors. So each tile
is computed by SPLIT programs, each over a fixed stretch of K. Every program writes its partial sums, then counts itself
in; the one that finds all others counted adds the partial sums *in the order of K* and finishes the tile. Integers
would add to the same in any order (and INT32 sums are exact); FP32 sums need that order.

Order in memory: partial sums, barrier of the block, then an acquire-release addition by one thread, barrier again (part
of how Triton broadcasts a scalar), then the reads, past the L1 cache. The last program resets the counter, so no launch
has to.
"""

import triton
import triton.language as tl


@triton.jit
def place(M, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr):
    """What this program computes: (slot: its tile of outputs, split, first row, first column)."""
    split = tl.program_id(0) % SPLIT
    slot = tl.program_id(0) // SPLIT
    chunks = tl.cdiv(M, ROWS)
    return slot, split, slot % chunks * ROWS, slot // chunks * BLOCK_N


@triton.jit
def stretch(split, K, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr):
    """The inputs of one split: (first, end), whole blocks of BLOCK_K but for the last."""
    span = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT) * BLOCK_K
    first = split * span
    return first, tl.minimum(first + span, K)


@triton.jit
def combine(part, partials, counters, slot, split, SPLIT: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """(whether this program is the last of its tile, the sum of all parts if so). part [ROWS, BLOCK_N]; slot numbers
    the tile."""
    local = tl.arange(0, ROWS)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tile = partials + slot.to(tl.int64) * (SPLIT * ROWS * BLOCK_N)
    tl.store(tile + split * (ROWS * BLOCK_N) + local, part)
    tl.debug_barrier()
    arrived = tl.atomic_add(counters + slot, 1, sem="acq_rel")
    last = arrived == SPLIT - 1
    total = tl.zeros([ROWS, BLOCK_N], part.dtype)
    if last:
        tl.store(counters + slot, 0)
        for k in range(SPLIT):
            total += tl.load(tile + k * (ROWS * BLOCK_N) + local, cache_modifier=".cg")
    return last, total


@triton.jit
def addends(bias, residual, row, column, M, N):
    """What `finish` adds to a tile, (bias, residual), 0 for what there is not: read before the parts are combined, so
    that one wait for memory serves both."""
    bias_here, residual_here = 0.0, 0.0
    if bias is not None:
        bias_here = tl.load(bias + column, mask=column < N, other=0.0)[None, :]
    if residual is not None:
        inside = (row[:, None] < M) & (column[None, :] < N)
        residual_here = tl.load(residual + row.to(tl.int64)[:, None] * N + column[None, :], mask=inside, other=0.0)
    return bias_here, residual_here


@triton.jit
def finish(y, bias_here, residual_here, out, row, column, M, N):
    """y f32 + both `addends`, in this order, to `out`, which may be the residual: the one program that writes a number
    is the only one that uses what was there."""
    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(out + row.to(tl.int64)[:, None] * N + column[None, :], y + bias_here + residual_here, mask=inside)
