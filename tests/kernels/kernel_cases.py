"""Inputs and cuts that the tests of every backend share."""

from functools import partial

import torch
from hypothesis import strategies as st
from quasar_kernels import cpu, reference
from quasar_kernels.reference import Transform

HEADS, GROUPS, SIZE, CAPACITY = 6, 2, 16, 200
ISAS = ["scalar"] if cpu.unavailable() else cpu.supported_isas()


def all_isas(check):
    """Runs check(name) on every instruction set of this machine; once where there is no C++ backend."""
    if cpu.unavailable():
        check("scalar")
        return
    before = cpu.isa()
    try:
        for one in ISAS:
            cpu.set_isa(one)
            check(one)
    finally:
        cpu.set_isa(before)


def chunkings(total: int):
    """Strategies for ways to cut `total` rows into consecutive passes."""
    return st.lists(st.integers(1, 64), min_size=1, max_size=total).map(partial(_cut, total))


def _cut(total: int, wishes: list[int]) -> list[int]:
    cuts = []
    for wish in wishes:
        cuts.append(min(wish, total - sum(cuts)))
        if sum(cuts) == total:
            return cuts
    return [*cuts, total - sum(cuts)]


def in_passes(op, x: torch.Tensor, cuts: list[int]):
    parts = [op(chunk) for chunk in x.split(cuts)]
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))
    return (torch.cat(parts),)


def same_bits(a, b) -> bool:
    a, b = (x if isinstance(x, tuple) else (x,) for x in (a, b))
    return all(torch.equal(left, right) for left, right in zip(a, b, strict=True))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def random_int8(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-127, 128, shape, generator=seeded(seed), dtype=torch.int8)


def orthonormal(side: int, seed: int = 3) -> torch.Tensor:
    return torch.linalg.qr(randn(side, side, seed=seed))[0].contiguous()


def row_ops(ops, size: int):
    """Every op of a backend that maps rows to rows, with its other operands fixed."""
    gain, wide = randn(size, seed=1), randn(70, size, seed=2)
    turn = orthonormal(5)
    transform = Transform(inv_smooth=gain.abs() + 0.1, shift=randn(size, seed=4), rotation=turn)
    rounded, wscale = reference.quantize_rows(wide)
    wq, w = ops.pack_w8a8(rounded), ops.pack_bf16(wide.bfloat16())

    def linear_w8a8(x):
        return ops.linear_w8a8(*ops.quantize_rows(x), wq, wscale, bias=wscale)

    return {
        "quantize_rows": ops.quantize_rows,
        "quantize_rows transformed": partial(ops.quantize_rows, transform=transform),
        "rotate": partial(ops.rotate, rotation=turn),
        "rmsnorm": lambda x: ops.rmsnorm(x, gain, 1e-5),
        "rmsnorm_quantize": lambda x: ops.rmsnorm_quantize(x, gain, 1e-5, transform),
        "silu_mul": ops.silu_mul,
        "silu_mul_quantize": ops.silu_mul_quantize,
        "linear_w8a8": linear_w8a8,
        "linear_bf16": lambda x: ops.linear_bf16(x, w, bias=wscale),
    }


def tree_case(parents: list[int], prefix: int):
    """Queries and a cache for a tree pass behind `prefix` rows: (q, k, v, lengths)."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    lengths = [prefix + depth + 1 for depth in depths]
    rows = len(parents)
    return (
        randn(rows, HEADS, SIZE),
        randn(GROUPS, CAPACITY, SIZE, seed=1),
        randn(GROUPS, CAPACITY, SIZE, seed=2),
        lengths,
    )


def trees(most: int = 12):
    return st.lists(st.integers(-1, most), min_size=1, max_size=most).map(
        lambda x: [min(p, m - 1) for m, p in enumerate(x)]
    )
