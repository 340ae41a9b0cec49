"""Splits qkv into heads, normalises (Qwen3) and rotates queries and keys, and appends keys and values to the cache.

One program per row and head; the cache is written in place, in its own dtype. A row that would fall outside the cache
is dropped: `start` may lie on the device, where the host cannot check it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.triton.launch import activations, check, check_optional, floats, launch, next_power, result
from quasar_kernels.triton.overlap import follow


@triton.jit(do_not_specialize=["start"])
def _rope_append(
    qkv, k_cache, v_cache, start, cos, sin, positions, q_norm, k_norm, eps, out, C,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, START_ON_DEVICE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    row, head = tl.program_id(0) // (HEADS + 2 * GROUPS), tl.program_id(0) % (HEADS + 2 * GROUPS)
    i = tl.arange(0, BLOCK)
    inside = i < HALF
    source = qkv + tl.program_id(0).to(tl.int64) * (2 * HALF)
    first = tl.load(source + i, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + i, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + GROUPS:
        if q_norm is not None:  # noqa: SIM102 – decided when compiled; what follows is not
            if head < HEADS:
                first, second = _normalise(first, second, q_norm, eps, i, HALF)
        if k_norm is not None:  # noqa: SIM102
            if head >= HEADS:
                first, second = _normalise(first, second, k_norm, eps, i, HALF)
        place = row
        if positions is not None:
            place = tl.load(positions + row)
        c = tl.load(cos + place.to(tl.int64) * HALF + i, mask=inside, other=0.0)
        s = tl.load(sin + place.to(tl.int64) * HALF + i, mask=inside, other=0.0)
        turned = first * c - second * s
        second = second * c + first * s
        first = turned
    if head < HEADS:
        target = out + (row.to(tl.int64) * HEADS + head) * (2 * HALF)
        tl.store(target + i, first, mask=inside)
        tl.store(target + HALF + i, second, mask=inside)
    else:
        begin = start
        if START_ON_DEVICE:
            begin = tl.load(start)
        at = begin + row
        fits = i < tl.where((at >= 0) & (at < C), HALF, 0)
        group = (head - HEADS) % GROUPS
        offset = (group.to(tl.int64) * C + at) * (2 * HALF)
        if head < HEADS + GROUPS:
            tl.store(k_cache + offset + i, first, mask=fits)
            tl.store(k_cache + offset + HALF + i, second, mask=fits)
        else:
            tl.store(v_cache + offset + i, first, mask=fits)
            tl.store(v_cache + offset + HALF + i, second, mask=fits)


@triton.jit
def _normalise(first, second, gain, eps, i, HALF: tl.constexpr):
    """RMSNorm of one head, given as its two halves."""
    mean = tl.div_rn(tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0), 2.0 * HALF)
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    first = first * factor * tl.load(gain + i, mask=i < HALF, other=0.0)
    second = second * factor * tl.load(gain + HALF + i, mask=i < HALF, other=0.0)
    return first, second


def check_caches(k_cache: Tensor, v_cache: Tensor) -> None:
    """Raises TypeError or ValueError, naming what is accepted, unless both are dense [G, C, D] of `activations`."""
    check("k_cache", k_cache, activations(k_cache.device), (None, None, None))
    check("v_cache", v_cache, activations(k_cache.device), tuple(k_cache.shape))


def rope_append(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    start: int | Tensor,
    cos: Tensor,
    sin: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    *,
    positions: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See `reference.rope_append`. start: a number, or i32 [1] on the device, where rows beyond the capacity are
    dropped. positions i32 [M]: then cos and sin are tables [context, D/2], and row m takes row positions[m]."""
    check_caches(k_cache, v_cache)
    groups, capacity, size = k_cache.shape
    check("qkv", qkv, (torch.float32, *floats(qkv)), (None, None))
    rows, width = qkv.shape
    heads = width // size - 2 * groups
    if size % 2 or width % size or heads < 1:
        raise ValueError(f"qkv is {width} wide; accepted: (H + 2·{groups})·{size} with H ≥ 1 and an even head size")
    on_device = isinstance(start, Tensor)
    if isinstance(start, Tensor):
        check("start", start, torch.int32, (1,))
    elif start < 0 or start + rows > capacity:
        raise ValueError(f"rows {start}…{start + rows - 1} do not fit; accepted: 0…{capacity - 1}")
    check_optional("positions", positions, torch.int32, (rows,))
    check("cos", cos, torch.float32, (rows if positions is None else None, size // 2))
    check("sin", sin, torch.float32, tuple(cos.shape))
    check_optional("q_norm", q_norm, torch.float32, (size,))
    check_optional("k_norm", k_norm, torch.float32, (size,))
    q = result(out, floats(qkv), (rows, heads, size), qkv)
    arguments = {
        "qkv": qkv,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "start": start,
        "cos": cos,
        "sin": sin,
        "positions": positions,
        "q_norm": q_norm,
        "k_norm": k_norm,
        "eps": eps,
        "out": q,
        "C": capacity,
        "HEADS": heads,
        "GROUPS": groups,
        "HALF": size // 2,
        "BLOCK": next_power(size // 2),
        "START_ON_DEVICE": on_device,
    }
    launch(_rope_append, rows * (heads + 2 * groups), arguments, warps=1)
    return q
