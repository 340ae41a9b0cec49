"""Attention of a few queries over a long cache, shared out along the cache, with results that depend on nothing else.

At decode there are a handful of queries and thousands of cached rows, so the work is cut along the cache: a program
takes one group of heads, a tile of queries × heads, and one stretch of SPLIT positions, and runs the online softmax
over it in blocks of 64. Stretches and blocks lie at absolute positions, whatever the length, and a second kernel
combines the stretches of each row, sixteen at a time; a row's own numbers pass through the same operations in the same
order however many rows or cached tokens there are. The grid covers the capacity, and a program beyond the last length
ends at once: so lengths may lie on the device, and a captured graph stays valid while the cache grows. A pass that is
not captured says how far it `reach`es, and takes so many rows at a time that its partial results stay below ROOM.

Trees. A row sees the prefix and its own path. Stretches inside the prefix are shared by all rows, as in a chain; in a
stretch that reaches into the tree each row has a program of its own, which gathers that row's path in logical order in
the same tile. So a tree row has the bits of its path decoded alone.

Weights are rounded to BF16 before they meet the values (in a BF16 cache); their sum is FP32.

What is lost: for a short cache most programs of a large capacity have nothing to do, a tree of M rows reads its last
stretch M times (from the L2 cache), and the loop that gathers a path keeps the compiler from reading ahead.
"""

from collections.abc import Sequence
from math import sqrt

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.triton.launch import check, floats, launch, next_power, result
from quasar_kernels.triton.overlap import follow
from quasar_kernels.triton.rope_append import check_caches
from quasar_kernels.triton.tiles import attend_tile

BLOCK = 64
PARTS = 16
"""Stretches that are combined at a time: for one wait of memory, up to sixteen times the tokens of a stretch."""
ROOM = 2**26
"""Numbers that the partial results of one launch may be, 256 MiB."""


@triton.jit(do_not_specialize=["M"])
def _attend_stretch(
    q, k_cache, v_cache, lengths, parents, values_out, sums_out, M, C, scale,
    WINDOW: tl.constexpr, GROUPS: tl.constexpr, PER: tl.constexpr, SIZE: tl.constexpr, TREE: tl.constexpr,
    TILE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    ROWS: tl.constexpr = TILE // PER
    group, rest = tl.program_id(0) % GROUPS, tl.program_id(0) // GROUPS
    units = tl.cdiv(M, ROWS)
    if TREE:
        units = M
    unit, split = rest % units, rest // units
    low_row, high_row, prefix = unit * ROWS, unit * ROWS + ROWS, C
    shared = True
    if TREE:
        all_rows = tl.arange(0, BLOCK_M)
        prefix = tl.min(tl.load(lengths + all_rows, mask=all_rows < M, other=C), axis=0) - 1
        shared = (split + 1) * SPLIT <= prefix
        low_row = unit
        high_row = tl.where(shared, unit + ROWS, unit + 1)  # no `if`: it would hide from the compiler what is aligned
    # In a stretch that all rows share, the tree's other programs have nothing to do.
    if (not TREE) or (not shared) or unit % ROWS == 0:
        t = tl.arange(0, TILE)
        row = low_row // ROWS * ROWS + t // PER
        here = (t < ROWS * PER) & (row >= low_row) & (row < high_row) & (row < M)
        ends = tl.minimum(tl.load(lengths + row, mask=here, other=0), C)
        starts = tl.zeros([TILE], tl.int32)
        if WINDOW > 0:
            starts = tl.maximum(ends - WINDOW, 0)
        low = tl.min(tl.where(here, starts, C), axis=0)
        stop = tl.max(ends, axis=0)
        first = tl.maximum(split * SPLIT, low // BLOCK * BLOCK)
        last = tl.minimum((split + 1) * SPLIT, stop)
        if first < last:
            d = tl.arange(0, BLOCK_D)
            position = tl.arange(0, BLOCK)
            head = group * PER + t % PER
            line = row * (GROUPS * PER) + head
            queries = tl.load(
                q + line[:, None] * SIZE + d[None, :], mask=here[:, None] & (d[None, :] < SIZE), other=0.0
            ).to(k_cache.dtype.element_ty)
            base = group.to(tl.int64) * C * SIZE
            top = tl.full([TILE], float("-inf"), tl.float32)
            total = tl.zeros([TILE], tl.float32)
            values = tl.zeros([TILE, BLOCK_D], tl.float32)
            for begin in range(first, last, BLOCK):
                at = begin + position
                inside = (at >= low) & (at < stop)
                if TREE:
                    depth = tl.where(begin + BLOCK > prefix, stop - prefix, 0)
                    at = _path(at, unit, depth, prefix, parents)
                    inside = inside & (at < C)
                k = tl.load(
                    k_cache + base + at[None, :] * SIZE + d[:, None],
                    mask=inside[None, :] & (d[:, None] < SIZE),
                    other=0.0,
                )
                scores = tl.dot(queries, k, input_precision="ieee") * scale
                seen = begin + position[None, :] < ends[:, None]
                if WINDOW > 0:
                    seen = seen & (begin + position[None, :] >= starts[:, None])
                scores = tl.where(seen, scores, float("-inf"))
                new_top = tl.maximum(top, tl.max(scores, axis=1))
                # A row that has seen nothing yet keeps −inf; −inf − (−inf) would be NaN, so it is shifted by 0 instead.
                shift = tl.where(new_top == float("-inf"), 0.0, new_top)
                weights = tl.exp(scores - shift[:, None])
                decay = tl.exp(top - shift)
                total = total * decay + tl.sum(weights, axis=1)
                v = tl.load(
                    v_cache + base + at[:, None] * SIZE + d[None, :],
                    mask=inside[:, None] & (d[None, :] < SIZE),
                    other=0.0,
                )
                values = tl.dot(weights.to(v.dtype), v, values * decay[:, None], input_precision="ieee")
                top = new_top
            part = split.to(tl.int64) * M * (GROUPS * PER)
            tl.store(
                values_out + part * SIZE + line[:, None] * SIZE + d[None, :],
                values,
                mask=here[:, None] & (d[None, :] < SIZE),
            )
            tl.store(sums_out + part * 2 + line * 2, top, mask=here)
            tl.store(sums_out + part * 2 + line * 2 + 1, total, mask=here)


@triton.jit
def _path(position, row, depth, prefix, parents):
    """Cache rows of some logical positions as `row` sees them: the prefix, then its path of `depth` rows."""
    at = position
    node = row
    for back in range(depth):
        at = tl.where(position == prefix + depth - 1 - back, prefix + node, at)
        node = tl.load(parents + node, mask=node >= 0, other=-1)
    return at


@triton.jit(do_not_specialize=["M"])
def _attend_combine(
    values_in, sums_in, lengths, out, M, C,
    WINDOW: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr,
    PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    line = tl.program_id(0)
    d = tl.arange(0, BLOCK_D)
    end = tl.minimum(tl.load(lengths + line // HEADS), C)
    start = 0
    if WINDOW > 0:
        start = tl.maximum(end - WINDOW, 0)
    low, high = start // SPLIT, tl.cdiv(end, SPLIT)
    top = float("-inf")
    total = 0.0
    values = tl.zeros([BLOCK_D], tl.float32)
    for begin in range(low // PARTS * PARTS, high, PARTS):
        split = begin + tl.arange(0, PARTS)
        there = (split >= low) & (split < high)
        at = line + split.to(tl.int64) * M * HEADS
        tops = tl.load(sums_in + at * 2, mask=there, other=float("-inf"))
        totals = tl.load(sums_in + at * 2 + 1, mask=there, other=0.0)
        parts = tl.load(
            values_in + at[:, None] * SIZE + d[None, :], mask=there[:, None] & (d[None, :] < SIZE), other=0.0
        )
        new_top = tl.maximum(top, tl.max(tops, axis=0))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        old, new = tl.exp(top - shift), tl.exp(tops - shift)
        total = total * old + tl.sum(totals * new, axis=0)
        values = values * old + tl.sum(parts * new[:, None], axis=0)
        top = new_top
    tl.store(out + line.to(tl.int64) * SIZE + d, tl.div_rn(values, total), mask=d < SIZE)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Sequence[int] | Tensor,
    parents: Sequence[int] | Tensor | None = None,
    window: int = 0,
    *,
    reach: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See `reference.attend`. lengths and parents: numbers, checked here, or i32 [M] on the device, unchecked. reach:
    what no length on the device exceeds, the capacity unless given."""
    check_caches(k_cache, v_cache)
    groups, capacity, size = k_cache.shape
    check("q", q, floats(q), (None, None, size))
    rows, heads, _ = q.shape
    if heads % groups:
        raise ValueError(f"q has {heads} heads; accepted: a multiple of the {groups} key/value heads")
    if not isinstance(lengths, Tensor):
        reach = max(lengths, default=0)
    elif reach is None:
        reach = capacity
    lengths_here = _integers("lengths", lengths, rows, 1, capacity, q.device)
    parents_here = None if parents is None else _integers("parents", parents, rows, -1, rows - 1, q.device)
    y = result(out, floats(q), (rows, heads * size), q)
    if rows == 0:
        return y
    per = heads // groups
    tile = attend_tile(size, per, q.device)
    height = max(tile["rows"], next_power(per))
    splits = triton.cdiv(reach, tile["split"])
    fit = max(ROOM // (splits * heads * size) // 4 * 4, 4)  # a slice of lengths starts at 16 bytes
    if parents is None and rows > fit:
        for first in range(0, rows, fit):
            some = slice(first, first + fit)
            attend(q[some], k_cache, v_cache, lengths_here[some], None, window, reach=reach, out=y[some])
        return y
    values = torch.empty(splits, rows * heads, size, dtype=torch.float32, device=q.device)
    sums = torch.empty(splits, rows * heads, 2, dtype=torch.float32, device=q.device)
    units = triton.cdiv(rows, height // per) if parents is None else rows
    shape = {"WINDOW": window, "SIZE": size, "BLOCK_D": max(next_power(size), 16), "SPLIT": tile["split"]}
    arguments = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "lengths": lengths_here,
        "parents": parents_here,
        "values_out": values,
        "sums_out": sums,
        "M": rows,
        "C": capacity,
        "scale": 1.0 / sqrt(size),
        "GROUPS": groups,
        "PER": per,
        "TREE": parents is not None,
        "TILE": height,
        "BLOCK": BLOCK,
        "BLOCK_M": next_power(rows) if parents is not None else 1,
    }
    programs = splits * units * groups
    launch(_attend_stretch, programs, {**arguments, **shape}, tile["warps"], tile["stages"], tile["registers"])
    combined = {"values_in": values, "sums_in": sums, "lengths": lengths_here, "out": y, "M": rows, "C": capacity}
    launch(_attend_combine, rows * heads, {**combined, "HEADS": heads, "PARTS": PARTS, **shape})
    return y


def _integers(
    name: str, numbers: Sequence[int] | Tensor, count: int, low: int, high: int, device: torch.device
) -> Tensor:
    """i32 [count] on the device. Raises TypeError or ValueError; numbers that are on the device are not looked at."""
    if isinstance(numbers, Tensor):
        check(name, numbers, torch.int32, (count,))
        return numbers
    if len(numbers) != count or not all(low <= number <= high for number in numbers):
        raise ValueError(f"{name} is {list(numbers)}; accepted: {count} numbers in {low}…{high}")
    return torch.tensor(numbers, dtype=torch.int32, device=device)
