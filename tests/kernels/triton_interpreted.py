"""Every Triton kernel, run by Triton's interpreter on CPU tensors, against the definition.

Collected only by `test_triton.py`, in a process of its own: `TRITON_INTERPRET=1` must be there before Triton is first
imported. The interpreter has no BF16 products, so activations are FP32 here and bounds are those of reordered FP32
sums; INT32 results, rounded rows and rotations are equal bit for bit.
"""

import importlib
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    CAPACITY,
    GROUPS,
    HEADS,
    SIZE,
    in_passes,
    orthonormal,
    randn,
    random_int8,
    row_ops,
    same_bits,
    tree_case,
    trees,
)
from ordered_products import order_products
from quasar_kernels import reference
from quasar_kernels import triton as ops
from quasar_kernels.reference import Transform
from quasar_kernels.triton import launch, scratch, tiles
from test_audit import smoothed
from tiny_models import write_checkpoint
from triton import language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_builder

import quasar_lab as ql

order_products()

ROTATE, QUANTIZE, ATTEND = (
    importlib.import_module(f"quasar_kernels.triton.{name}") for name in ("rotate", "quantize_rows", "attend")
)
slow = pytest.mark.slow
few = settings(max_examples=6, deadline=None, database=None)


def close(a, b, **more):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5, **more)


def integers(numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.fixture
def short_stretches(monkeypatch):
    """Stretches of one block, two combined at a time, so that a small cache has several; tiles of 16 queries × heads,
    so that there are chunks."""
    monkeypatch.setattr(ATTEND, "PARTS", 2)
    tile = {"rows": 16, "split": 64, "warps": 4, "stages": 1, "registers": 255}
    with tiles.forced("attend", tile):
        yield


def small_tile(rows, split):
    """The tile of a product: `rows` high, small, K in `split` stretches."""
    return {"rows": rows, "block_n": 16, "block_k": 32, "split_k": split, "warps": 4, "stages": 1, "engine": "triton"}


def test_this_is_the_interpreter():
    assert launch.INTERPRETED


def test_its_products_have_the_same_bits_in_every_tile_and_other_bits_when_k_is_cut():
    def product(a, b, total=0.0):
        total = torch.zeros(len(a), b.shape[1]) + total
        handles = (TensorHandle(x.numpy(), tl.float32) for x in (a, b, total))
        return torch.from_numpy(interpreter_builder.create_dot(*handles, "ieee", None).data)

    a, b = randn(32, 64), randn(64, 32, seed=1)
    whole = product(a, b)
    close(whole, (a.double() @ b.double()).float())
    for rows, columns in ((1, 32), (32, 1), (1, 1), (16, 8)):
        tiles_of = [torch.cat([product(x, y) for y in b.split(columns, 1)], 1) for x in a.split(rows)]
        assert torch.equal(torch.cat(tiles_of), whole)
    assert torch.equal(product(a.T.contiguous().T, b.T.contiguous().T), whole)  # however a tile lies in memory
    for k in (32, 16):
        total = 0.0
        for left, right in zip(a.split(k, 1), b.split(k), strict=True):
            total = product(left, right, total)
        assert (total != whole).float().mean() > 0.1


# ---- rows


@pytest.mark.parametrize("name", [name for name in row_ops(reference, 40) if "linear" not in name])
def test_row_ops_agree_with_the_reference_at_every_width(name):
    x = randn(17, 40) * 3
    op = row_ops(ops, 40)[name]
    ours, theirs = op(x), row_ops(reference, 40)[name](x)
    for a, b in zip(*((y if isinstance(y, tuple) else (y,)) for y in (ours, theirs)), strict=True):
        if a.dtype is torch.int8:  # a sum in another order may fall on the other side of a half
            assert (a.int() - b.int()).abs().max() <= 1
        else:
            close(a, b)
    for cuts in ([1] * 17, [2, 3, 5, 7], [16, 1]):
        assert same_bits(in_passes(op, x, cuts), ours)


@slow
@given(rows=st.integers(1, 5), size=st.integers(1, 70), power=st.integers(-44, 37), seed=st.integers(0, 99))
@few
def test_rounded_rows_are_equal_to_the_reference(rows, size, power, seed):
    x = randn(rows, size, seed=seed) * torch.tensor(10.0).pow(power)
    x[0] = 0
    transform = Transform(inv_smooth=randn(size, seed=1).abs(), shift=randn(size, seed=2))
    assert same_bits(ops.quantize_rows(x), reference.quantize_rows(x))
    assert same_bits(ops.quantize_rows(x, transform), reference.quantize_rows(x, transform))


def test_halves_round_to_even_and_bad_numbers_show():
    x = torch.tensor([[127.0, 0.5, 1.5, -0.5, -2.5], [0.0] * 5, [1.0, torch.nan, 2, 3, 4], [1.0, -torch.inf, 2, 3, 4]])
    q, scale = ops.quantize_rows(x)
    expected, expected_scale = reference.quantize_rows(x)
    assert torch.equal(q, expected)
    assert torch.equal(scale.nan_to_num(-1.0), expected_scale.nan_to_num(-1.0))
    assert scale.isnan().tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("size", "side"),
    [(40, 5), (64, 1), (24, 3), (36, 9), (7, 7), pytest.param(344, 43, marks=slow), pytest.param(192, 96, marks=slow)],
)
@pytest.mark.parametrize("tile", [16, 8192])
def test_rotations_are_equal_to_the_reference(monkeypatch, size, side, tile):
    for module in (ROTATE, QUANTIZE):
        monkeypatch.setattr(module, "LINE_TILE", tile)  # rows in one tile, or in several
    x, turn = randn(3, size), orthonormal(side)
    smooth = randn(size, seed=1).abs() + 0.1
    assert torch.equal(ops.rotate(x, turn), reference.rotate(x, turn))
    for transform in (Transform(rotation=turn), Transform(smooth, randn(size, seed=2), turn)):
        assert same_bits(ops.quantize_rows(x, transform), reference.quantize_rows(x, transform))


@pytest.mark.parametrize("rotated", [False, True])
def test_a_row_longer_than_a_tile_is_quantized_in_passes(rotated):
    size = 16384
    transform = Transform(shift=randn(size, seed=3), rotation=orthonormal(16) if rotated else None)
    x = randn(2, size)
    assert same_bits(ops.quantize_rows(x, transform), reference.quantize_rows(x, transform))
    gate_up = torch.cat([torch.full((1, size), 40.0), x[:1]], dim=1)  # silu(40) is 40 in FP32
    ours, theirs = ops.silu_mul_quantize(gate_up, transform), reference.silu_mul_quantize(gate_up, transform)
    assert same_bits(ours, theirs)


def test_silu_is_right_at_the_ends():
    gate = torch.tensor([[-1e30, -200.0, -88.0, -1e-30, 0.0, 1e-30, 88.0, 200.0, 1e30]])
    both = torch.cat([gate, torch.ones_like(gate)], dim=1)
    close(ops.silu_mul(both), reference.silu_mul(both))


# ---- products


@pytest.mark.parametrize("width", [1, 5, 16, 17, 40])
@pytest.mark.parametrize(("outputs", "inputs"), [(33, 300), pytest.param(70, 31, marks=slow)])
def test_int8_products_are_equal_to_the_reference(width, outputs, inputs):
    q, scale = reference.quantize_rows(randn(width, inputs))
    wq, wscale = reference.quantize_rows(randn(outputs, inputs, seed=1))
    bias, residual = randn(outputs, seed=2), randn(width, outputs, seed=3)
    for more in ((), (bias,), (None, residual), (bias, residual)):
        assert torch.equal(
            ops.linear_w8a8(q, scale, wq, wscale, *more), reference.linear_w8a8(q, scale, wq, wscale, *more)
        )


def test_int32_sums_are_exact_at_the_extremes():
    q = torch.full((3, 12288), 127, dtype=torch.int8)
    q[1], q[2] = -127, random_int8(12288)
    wq = torch.cat([torch.full((1, 12288), -127, dtype=torch.int8), random_int8(4, 12288, seed=1)])
    exact = (q.long() @ wq.long().T).to(torch.int32).float()
    assert exact.abs().max() > 2**27
    for rows in (3, 18):  # the tile of narrow passes, and the tall one
        y = ops.linear_w8a8(q.repeat(rows // 3, 1), torch.ones(rows), wq, torch.ones(5))
        assert torch.equal(y, exact.repeat(rows // 3, 1))


@pytest.mark.parametrize("split", [1, 3, 4, 11])
@pytest.mark.parametrize("rows", [16, 32])
def test_a_product_does_not_depend_on_its_tile(rows, split):
    q, wq, scale, wscale = random_int8(18, 300), random_int8(40, 300, seed=1), torch.ones(18), torch.ones(40)
    for _ in range(2):  # the second launch finds the counters as the first left them
        with tiles.forced("linear_w8a8_wide", small_tile(rows, split)):
            y = ops.linear_w8a8(q, scale, wq, wscale)
        assert torch.equal(y, reference.linear_w8a8(q, scale, wq, wscale))
        _, counters = scratch.scratch(q.device, 1, 1)
        assert not counters.any()


@pytest.mark.parametrize("split", [1, 4])
def test_bf16_products_have_the_same_bits_at_every_width(split):
    with tiles.forced("linear_bf16", small_tile(16, split)):
        check_bf16_widths()


def check_bf16_widths():
    x, w, bias, residual = randn(17, 300), randn(33, 300, seed=1).bfloat16(), randn(33, seed=2), randn(17, 33, seed=3)
    whole = ops.linear_bf16(x, w, bias, residual)
    close(whole, reference.linear_bf16(x, w, bias, residual))
    for width in (1, 2, 5, 9, 16):
        assert torch.equal(ops.linear_bf16(x[:width], w, bias, residual[:width]), whole[:width])
    assert torch.equal(ops.linear_bf16(x[16:], w, bias, residual[16:]), whole[16:])


def test_a_pass_of_many_rows_is_taken_in_parts_and_has_the_same_bits(monkeypatch):
    for name in ("linear_w8a8", "linear_bf16"):
        monkeypatch.setattr(importlib.import_module(f"quasar_kernels.triton.{name}"), "MANY", 16)
    with tiles.forced("linear_bf16", small_tile(16, 2)), tiles.forced("linear_w8a8_wide", small_tile(16, 2)):
        check_bf16_widths()
        x, w = randn(40, 300), randn(33, 300, seed=1).bfloat16()
        assert torch.equal(ops.linear_bf16(x, w)[16:32], ops.linear_bf16(x[16:32], w))
        (q, scale), (wq, wscale) = reference.quantize_rows(x), reference.quantize_rows(w.float())
        assert torch.equal(ops.linear_w8a8(q, scale, wq, wscale), reference.linear_w8a8(q, scale, wq, wscale))


def test_a_product_may_be_added_in_place():
    q, scale = reference.quantize_rows(randn(5, 40))
    wq, wscale = reference.quantize_rows(randn(33, 40, seed=1))
    x = randn(5, 33, seed=3)
    expected = reference.linear_w8a8(q, scale, wq, wscale, None, x)
    assert ops.linear_w8a8(q, scale, wq, wscale, None, x, out=x) is x
    assert torch.equal(x, expected)


def test_a_scale_that_is_nan_shows_in_its_row_alone():
    q, wq = random_int8(3, 7), random_int8(2, 7, seed=1)
    y = ops.linear_w8a8(q, torch.tensor([1.0, torch.nan, 1.0]), wq, torch.ones(2))
    assert y.isnan().all(dim=1).tolist() == [False, True, False]


# ---- attention


@pytest.mark.parametrize("window", [0, 1, 30, 100])
@pytest.mark.usefixtures("short_stretches")
def test_attention_has_the_same_bits_at_every_width(window):
    q, k, v = randn(17, HEADS, SIZE), randn(GROUPS, CAPACITY, SIZE, seed=1), randn(GROUPS, CAPACITY, SIZE, seed=2)
    lengths = list(range(118, 135))
    whole = ops.attend(q, k, v, lengths, None, window)
    close(whole, reference.attend(q, k, v, lengths, None, window))
    assert torch.equal(ops.attend(q, k, v, integers(lengths), None, window), whole)
    for first, last in ((0, 1), (3, 8), (16, 17), (1, 17)):
        part = ops.attend(q[first:last], k, v, lengths[first:last], None, window)
        assert torch.equal(part, whole[first:last])


@pytest.mark.usefixtures("short_stretches")
def test_attention_says_how_far_it_reaches_and_takes_what_there_is_room_for(monkeypatch):
    q, k, v = randn(9, HEADS, SIZE), randn(GROUPS, CAPACITY, SIZE, seed=1), randn(GROUPS, CAPACITY, SIZE, seed=2)
    lengths = integers(range(62, 71))
    whole = ops.attend(q, k, v, lengths)
    grids = []
    monkeypatch.setattr(ATTEND, "launch", lambda kernel, programs, *more: grids.append(programs))
    ops.attend(q, k, v, lengths)
    ops.attend(q, k, v, lengths, reach=70)
    monkeypatch.undo()
    assert grids[2] < grids[0]
    assert torch.equal(ops.attend(q, k, v, lengths, reach=70), whole)
    monkeypatch.setattr(ATTEND, "ROOM", 1)  # four rows at a time
    assert torch.equal(ops.attend(q, k, v, lengths), whole)
    assert torch.equal(ops.attend(q, k, v, lengths.tolist()), whole)


@pytest.mark.parametrize("lengths", [[1], [64], [65], [CAPACITY], [1, 2, 3], [CAPACITY - 1, CAPACITY]])
@pytest.mark.usefixtures("short_stretches")
def test_attention_from_the_first_token_to_the_last_that_fits(lengths):
    q = randn(len(lengths), HEADS, SIZE)
    k, v = randn(GROUPS, CAPACITY, SIZE, seed=1), randn(GROUPS, CAPACITY, SIZE, seed=2)
    close(ops.attend(q, k, v, lengths), reference.attend(q, k, v, lengths))


@pytest.mark.parametrize(("size", "per"), [(8, 1), (80, 3), pytest.param(64, 7, marks=slow), (16, 17)])
def test_attention_of_any_head(size, per):
    q, k, v = randn(3, 2 * per, size), randn(2, 90, size, seed=1), randn(2, 90, size, seed=2)
    close(ops.attend(q, k, v, [70, 71, 72]), reference.attend(q, k, v, [70, 71, 72]))


@pytest.mark.parametrize(
    ("parents", "prefix"),
    [([-1, 0, 0, 2], 63), ([-1, -1, 0, 1, 3, 3], 130), ([-1, -1], 0), ([-1, *range(6)], 60)],
)
@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.usefixtures("short_stretches")
def test_a_tree_row_equals_its_own_chain(parents, prefix, window):
    check_tree(parents, prefix, window)


@slow
@given(parents=trees(), prefix=st.integers(0, 150), window=st.sampled_from([0, 5, 70]))
@few
def test_any_tree_row_equals_its_own_chain(parents, prefix, window):
    check_tree(parents, prefix, window)


def check_tree(parents, prefix, window):
    q, k, v, lengths = tree_case(parents, prefix)
    y = ops.attend(q, k, v, lengths, parents, window)
    assert torch.equal(ops.attend(q, k, v, integers(lengths), integers(parents), window), y)
    close(y, reference.attend(q, k, v, lengths, parents, window))
    for row in range(len(parents)):
        path = [row]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        chain_k, chain_v = k.clone(), v.clone()
        for depth, node in enumerate(path):
            chain_k[:, prefix + depth], chain_v[:, prefix + depth] = k[:, prefix + node], v[:, prefix + node]
        assert torch.equal(ops.attend(q[row : row + 1], chain_k, chain_v, [lengths[row]], None, window)[0], y[row])


@pytest.mark.parametrize("parents", [None, [-1, 0, 0, 2]])
@pytest.mark.usefixtures("short_stretches")
def test_rows_of_the_cache_that_nobody_sees_are_never_read(parents):
    q, k, v, lengths = tree_case(parents or [-1, 0, 1, 2], 70)
    tree = None if parents is None else integers(parents)
    clean = ops.attend(q, k, v, integers(lengths), tree, 20)
    for cache in (k, v):
        cache[:, 74:] = float("nan")
        cache[:, : 71 - 20] = float("nan")
    assert torch.equal(ops.attend(q, k, v, integers(lengths), tree, 20), clean)


# ---- the rest of a pass


@pytest.mark.parametrize("norms", [False, True])
def test_rope_append(norms):
    qkv, angles = randn(7, (HEADS + 2 * GROUPS) * SIZE), randn(30, SIZE // 2, seed=1)
    cos, sin = angles.cos(), angles.sin()
    q_gain, k_gain = (randn(SIZE, seed=2), randn(SIZE, seed=3)) if norms else (None, None)
    ours, device, theirs = (torch.full((2, GROUPS, 12, SIZE), float("nan")) for _ in range(3))
    expected = reference.rope_append(qkv, *theirs, 4, cos[9:16], sin[9:16], q_gain, k_gain)
    q = ops.rope_append(qkv, *ours, 4, cos[9:16], sin[9:16], q_gain, k_gain)
    close(q, expected)
    close(ours, theirs, equal_nan=True)
    positions = torch.arange(9, 16, dtype=torch.int32)
    again = ops.rope_append(qkv, *device, integers([4]), cos, sin, q_gain, k_gain, positions=positions)
    assert torch.equal(again, q)
    assert torch.equal(device.nan_to_num(9), ours.nan_to_num(9))


@pytest.mark.parametrize("start", [10, 12, -1])
def test_rows_that_do_not_fit_are_dropped(start):
    qkv, angles = randn(3, (HEADS + 2 * GROUPS) * SIZE), randn(3, SIZE // 2, seed=1)
    guarded = torch.full((2, GROUPS + 2, 12, SIZE), 7.0)  # groups before and behind stand for foreign memory
    k, v = guarded[0, 1:-1], guarded[1, 1:-1]
    ops.rope_append(qkv, k, v, integers([start]), angles.cos(), angles.sin())
    assert (guarded[:, (0, -1)] == 7.0).all()
    changed = (guarded[:, 1:-1] != 7.0).all(dim=-1)[0, 0].nonzero().flatten().tolist()
    assert changed == [row for row in range(start, start + 3) if 0 <= row < 12]
    with pytest.raises(ValueError, match="do not fit"):
        ops.rope_append(qkv, k, v, start, angles.cos(), angles.sin())


@pytest.mark.parametrize("k", [1, 5, 12])
def test_top_rows_are_equal_to_the_reference(k):
    logits = randn(6, 5000)
    logits[1, 4000] = logits[1, 7] = logits[1].max()
    logits[2, 9] = torch.nan
    logits[3, :4990] = -torch.inf
    logits[4] = torch.where(torch.arange(5000) % 2 == 0, 0.0, -0.0)
    logits[5], logits[5, :2048] = -200.0, -torch.inf  # a stretch of the vocabulary without weight
    for ours, theirs in zip(ops.top_rows(logits, k)[:2], reference.top_rows(logits, k)[:2], strict=True):
        assert torch.equal(ours.nan_to_num(-9), theirs.nan_to_num(-9))
    close(ops.top_rows(logits, k)[2], reference.top_rows(logits, k)[2], equal_nan=True)
    table = torch.full((6, 2 * k + 1), 5.0, dtype=torch.float64)
    assert ops.top_table(logits, k, out=table) is table
    assert torch.equal(table[:, :k].long(), ops.top_rows(logits, k)[1])


def test_embed_rows():
    table = randn(7, 1030).bfloat16()
    ids = torch.tensor([3, 6, 0, 7, -1])
    x = ops.embed_rows(table, ids)
    assert torch.equal(x[:3], table[ids[:3]].float())
    assert x[3:].isnan().all()
    assert torch.equal(ops.embed_rows(table, integers([3, 6, 0])), x[:3])


def test_results_go_into_given_tensors():
    x, gain = randn(3, 40), randn(40, seed=1)
    q, scale, y = torch.empty(3, 40, dtype=torch.int8), torch.empty(3), torch.empty(3, 40)
    assert ops.rmsnorm(x, gain, 1e-5, out=y) is y
    close(y, reference.rmsnorm(x, gain, 1e-5))
    given_q, given_scale = ops.rmsnorm_quantize(x, gain, 1e-5, out=(q, scale))
    assert given_q is q
    assert given_scale is scale
    assert same_bits((q, scale), reference.rmsnorm_quantize(x, gain, 1e-5))
    with pytest.raises(ValueError, match="out"):
        ops.rmsnorm(x, gain, 1e-5, out=torch.empty(3, 41))


def test_what_does_not_fit_is_an_error_that_names_what_does():
    x, w = randn(3, 40), randn(8, 40, seed=1).bfloat16()
    with pytest.raises(ValueError, match=r"contiguous"):
        ops.quantize_rows(randn(40, 3).T)
    with pytest.raises(TypeError, match=r"float64.*accepted: torch\.float32"):
        ops.quantize_rows(x.double())
    with pytest.raises(TypeError, match=r"w is torch\.float32.*accepted: torch\.bfloat16"):
        ops.linear_bf16(x, w.float())
    with pytest.raises(ValueError, match=r"w is \[8, 40\]; accepted: \[any, 39\]"):
        ops.linear_bf16(x[:, :39].contiguous(), w)
    with pytest.raises(TypeError, match=r"accepted: torch\.float32 on cpu"):
        ops.rmsnorm(torch.empty(3, 40, device="meta"), randn(40), 1e-5)
    with pytest.raises(ValueError, match="rotation"):
        ops.rotate(x, orthonormal(6))
    with pytest.raises(ValueError, match="even"):
        ops.silu_mul(randn(3, 41))
    q, k, v, lengths = tree_case([-1, 0, 0], 70)
    with pytest.raises(ValueError, match="accepted: 3 numbers in 1…200"):
        ops.attend(q, k, v, [71, 72, CAPACITY + 1])
    with pytest.raises(ValueError, match="lengths"):
        ops.attend(q, k, v, integers(lengths[:2]))
    with pytest.raises(ValueError, match="k is 65"):
        ops.top_rows(randn(1, 100), 65)


# ---- a model


class Eager:
    """These ops, and a runtime for `quasar_lab.graphs` that runs a pass again instead of replaying its graph."""

    name = "triton"

    def __getattr__(self, name):
        return getattr(ops, name)

    def runtime(self):
        return self

    def upload(self, numbers, out=None):
        sent = integers(numbers)
        return sent if out is None else out.copy_(sent)

    def capture(self, work):
        work()
        return work

    def mark(self):
        return None


@slow
@pytest.mark.parametrize("recipe", ["bf16", "w8a8"])
def test_a_whole_decoder_is_close_to_the_reference_and_invariant_in_width(recipe, tmp_path):
    write_checkpoint(tmp_path, "qwen3")
    plain = ql.load(tmp_path, backend="reference")
    plain = smoothed(plain, tmp_path) if recipe == "w8a8" else plain
    decoder = replace(plain, ops=Eager())
    ids = torch.randint(0, 94, (19,), generator=torch.Generator().manual_seed(2)).tolist()

    def rows(model, cuts):
        cache = model.new_cache(64)
        return torch.cat([model.forward(ids[a:b], cache).logits for a, b in pairwise(cuts)])

    whole, expected = rows(decoder, [0, 19]), rows(plain, [0, 19])
    # Rounding may fall on the other side of a half after a sum in another order: near in length, not number by number.
    assert (whole - expected).norm() < (0.02 if recipe == "w8a8" else 1e-4) * expected.norm()
    assert torch.equal(rows(decoder, [0, 1, 16, 19]), whole)
    cache = decoder.new_cache(64)
    decoder.forward(ids[:16], cache)
    tree = decoder.forward([7, *ids[16:19]], cache, parents=[-1, -1, 1, 2]).logits
    assert torch.equal(tree[1:], whole[16:19])
