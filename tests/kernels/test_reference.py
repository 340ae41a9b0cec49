"""The definition of every op, held to what the rest of the lab relies on: bits that do not depend on the width, exact
INT32, trees that equal chains, and caches whose unused rows are never read."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    CAPACITY,
    GROUPS,
    HEADS,
    SIZE,
    chunkings,
    in_passes,
    orthonormal,
    randn,
    random_int8,
    row_ops,
    same_bits,
    tree_case,
    trees,
)
from quasar_kernels import reference as ops
from quasar_kernels.reference import Transform


@pytest.mark.parametrize("name", row_ops(ops, 40))
@given(cuts=chunkings(64))
@settings(max_examples=8, deadline=None)
def test_a_row_has_the_same_bits_at_every_width(name, cuts):
    op, x = row_ops(ops, 40)[name], randn(64, 40)
    assert same_bits(in_passes(op, x, cuts), op(x))


@pytest.mark.parametrize(("heads", "size"), [(HEADS, SIZE), (4, 8), (2, 5)])
@given(cuts=chunkings(64), window=st.sampled_from([0, 1, 30, 100]))
@settings(max_examples=10, deadline=None)
def test_attention_has_the_same_bits_at_every_width(heads, size, cuts, window):
    q, k, v = randn(64, heads, size), randn(GROUPS, CAPACITY, size, seed=1), randn(GROUPS, CAPACITY, size, seed=2)
    lengths = torch.arange(101, 165)
    whole = ops.attend(q, k, v, lengths.tolist(), window=window)
    parts = [
        ops.attend(a, k, v, b.tolist(), window=window) for a, b in zip(q.split(cuts), lengths.split(cuts), strict=True)
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_int32_is_exact_at_the_extremes():
    q = torch.full((3, 12288), 127, dtype=torch.int8)
    q[1], q[2] = -127, random_int8(12288)
    wq = torch.cat([torch.full((1, 12288), -127, dtype=torch.int8), random_int8(20, 12288, seed=1)])
    y = ops.linear_w8a8(q, torch.ones(3), wq, torch.ones(21))
    exact = q.long() @ wq.long().T
    assert exact.abs().max() > 2**27
    assert torch.equal(y, exact.to(torch.int32).float())


def test_linears_agree_with_float64():
    x, w, bias, residual = randn(5, 300), randn(70, 300, seed=1).bfloat16(), randn(70, seed=2), randn(5, 70, seed=3)
    exact = (x.double() @ w.double().T + bias + residual).float()
    torch.testing.assert_close(ops.linear_bf16(x, w, bias, residual), exact, rtol=1e-5, atol=1e-4)


def test_quantization_rounds_half_to_even_within_half_a_step():
    x = torch.tensor([[127.0, 0.5, 1.5, -0.5, -2.5], [0.0, 0.0, 0.0, 0.0, 0.0], [1e30, 1.0, -1e30, 3e29, 0.0]])
    q, scale = ops.quantize_rows(x)
    assert q[0].tolist() == [127, 0, 2, 0, -2]
    assert q[1].tolist() == [0] * 5
    assert scale[1] == 1.0
    assert ((q * scale[:, None] - x).abs() <= scale[:, None] / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_number_shows_in_the_result(bad):
    x = torch.ones(3, 7)
    x[1, 4] = bad
    q, scale = ops.quantize_rows(x)
    assert scale.isnan().tolist() == [False, True, False]
    y = ops.linear_w8a8(q, scale, torch.ones(2, 7, dtype=torch.int8), torch.ones(2))
    assert y.isnan().all(dim=1).tolist() == [False, True, False]


def test_transform_shifts_then_scales_then_rotates():
    x, shift, inverse = randn(4, 24), randn(24, seed=1), randn(24, seed=2).abs()
    turn = orthonormal(6)
    expected = ops.rotate((x - shift) * inverse, turn)
    torch.testing.assert_close(ops.apply_transform(x, Transform(inverse, shift, turn)), expected)
    assert torch.equal(ops.apply_transform(x, Transform(inverse)), x * inverse)
    assert torch.equal(ops.apply_transform(x, Transform(shift=shift)), x - shift)


@given(parents=trees(), prefix=st.integers(0, 150), window=st.sampled_from([0, 5, 70]))
@settings(max_examples=25, deadline=None)
def test_a_tree_row_equals_its_own_chain(parents, prefix, window):
    q, k, v, lengths = tree_case(parents, prefix)
    y = ops.attend(q, k, v, lengths, parents, window)
    for row in range(len(parents)):
        path = [row]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        chain_k, chain_v = k.clone(), v.clone()
        for depth, node in enumerate(path):
            chain_k[:, prefix + depth], chain_v[:, prefix + depth] = k[:, prefix + node], v[:, prefix + node]
        assert torch.equal(ops.attend(q[row : row + 1], chain_k, chain_v, [lengths[row]], window=window)[0], y[row])


@pytest.mark.parametrize("parents", [None, [-1, 0, 0, 2]])
def test_rows_behind_the_pass_are_never_read(parents):
    q, k, v, lengths = tree_case(parents or [-1, 0, 1, 2], 70)
    clean = ops.attend(q, k, v, lengths, parents, window=20)
    for cache in (k, v):
        cache[:, 74:] = float("nan")
    assert torch.equal(ops.attend(q, k, v, lengths, parents, window=20), clean)


def test_rope_append_rotates_and_writes_only_its_rows():
    qkv, angles = randn(3, (HEADS + 2 * GROUPS) * SIZE), randn(3, SIZE // 2, seed=1)
    k, v = (torch.full((GROUPS, 10, SIZE), float("nan")) for _ in range(2))
    q = ops.rope_append(qkv, k, v, 4, angles.cos(), angles.sin())
    heads = qkv.reshape(3, -1, SIZE)
    torch.testing.assert_close(q.norm(dim=-1), heads[:, :HEADS].norm(dim=-1))  # a rotation keeps lengths
    half = SIZE // 2
    turned = torch.polar(torch.ones(3, half), angles)[:, None] * torch.complex(heads[..., :half], heads[..., half:])
    torch.testing.assert_close(torch.complex(q[..., :half], q[..., half:]), turned[:, :HEADS])
    torch.testing.assert_close(k[:, 4:7, :half], turned[:, HEADS : HEADS + GROUPS].real.transpose(0, 1))
    assert torch.equal(v[:, 4:7], heads[:, HEADS + GROUPS :].transpose(0, 1))
    for cache in (k, v):
        assert cache[:, :4].isnan().all()
        assert cache[:, 7:].isnan().all()
