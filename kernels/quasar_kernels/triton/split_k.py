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
def place(M, N, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """What this program computes: (slot: its tile of outputs, split, rows i32 [ROWS], columns i32 [BLOCK_N])."""
    chunks, tiles = tl.cdiv(M, ROWS), tl.cdiv(N, BLOCK_N)
    slot = tl.program_id(0) % (chunks * tiles)
    split = tl.program_id(0) // (chunks * tiles)
    row = slot % chunks * ROWS + tl.arange(0, ROWS)
    column = slot // chunks * BLOCK_N + tl.arange(0, BLOCK_N)
    return slot, split, row, column


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
def finish(y, bias, residual, out, row, column, M, N):
    """y f32 + bias + residual, in this order, to `out`, which may be `residual`: each number has one program."""
    inside = (row[:, None] < M) & (column[None, :] < N)
    place = row.to(tl.int64)[:, None] * N + column[None, :]
    if bias is not None:
        y = y + tl.load(bias + column, mask=column < N, other=0.0)[None, :]
    if residual is not None:
        y = y + tl.load(residual + place, mask=inside, other=0.0)
    tl.store(out + place, y, mask=inside)
