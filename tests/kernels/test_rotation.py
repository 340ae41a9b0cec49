"""The Kronecker rotation: the definition against a dense matrix in FP64, the C++ backend against the definition bit for
bit, and its place in the ops that round."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import all_isas, chunkings, in_passes, orthonormal, randn, same_bits
from quasar_kernels import cpu, reference, rotate, rotation_sides
from quasar_kernels.reference import Transform

BACKENDS = ["reference"] if cpu.unavailable() else ["reference", "cpu"]
needs_cpu = pytest.mark.skipif(cpu.unavailable() is not None, reason=f"no C++ backend: {cpu.unavailable()}")
sides = st.sampled_from([1, 3, 12, 36, 43])
close = partial(torch.testing.assert_close, rtol=2e-5, atol=2e-5)


def hadamard(size: int) -> torch.Tensor:
    """The normalized Walsh-Hadamard matrix by its formula."""
    odd = [[-1.0 if (i & j).bit_count() % 2 else 1.0 for j in range(size)] for i in range(size)]
    return torch.tensor(odd, dtype=torch.float64) / size**0.5


@given(rows=st.integers(1, 5), side=sides, power=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_the_definition_is_a_kronecker_product(rows, side, power):
    x, turn = randn(rows, side << power), orthonormal(side)
    dense = torch.kron(turn.double(), hadamard(1 << power))
    close(reference.rotate(x, turn), (x.double() @ dense).float())


@needs_cpu
@given(rows=st.integers(1, 17), side=sides, power=st.integers(0, 11), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_kernels_have_the_bits_of_the_definition(rows, side, power, seed):
    x, turn = randn(rows, side << power, seed=seed), orthonormal(side)
    transform = Transform(
        inv_smooth=randn(side << power, seed=1).abs() + 0.1, shift=randn(side << power), rotation=turn
    )
    turned, rounded = reference.rotate(x, turn), reference.quantize_rows(x, transform)

    def check(_):
        assert torch.equal(cpu.rotate(x, turn), turned)
        assert same_bits(cpu.quantize_rows(x, transform), rounded)

    all_isas(check)


@pytest.mark.parametrize("backend", BACKENDS)
@given(rows=st.integers(1, 17), side=sides, power=st.integers(0, 11))
@settings(max_examples=25, deadline=None)
def test_lengths_are_kept_and_the_transpose_undoes(backend, rows, side, power):
    x, turn = randn(rows, side << power), orthonormal(side)
    turned = rotate(x, turn, backend=backend)
    torch.testing.assert_close(turned.norm(dim=1), x.norm(dim=1))
    close(rotate(turned, turn.T, backend=backend), x)


@pytest.mark.parametrize("size", [1, 2, 8, 64, 2048])
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_large_channel_is_spread_evenly(backend, size):
    x = torch.zeros(1, size)
    x[0, size // 2] = 8.0
    close(rotate(x, torch.ones(1, 1), backend=backend).abs(), torch.full((1, size), 8.0 / size**0.5))


def test_a_dense_rotation_is_a_product():
    x, turn = randn(5, 48), orthonormal(48)
    close(reference.rotate(x, turn), x @ turn)


@given(cuts=chunkings(64))
@settings(max_examples=8, deadline=None)
def test_the_definition_has_the_same_bits_at_every_width(cuts):
    x, turn = randn(64, 96), orthonormal(12)
    assert same_bits(in_passes(partial(reference.rotate, rotation=turn), x, cuts), reference.rotate(x, turn))


@needs_cpu
@pytest.mark.parametrize("count", [1, 2, 3])
@given(cuts=chunkings(64))
@settings(max_examples=8, deadline=None)
def test_the_kernels_have_the_same_bits_at_every_width(count, cuts):
    """1536 wide, so that many rows are shared among threads."""
    x, gate_up, gain, transform = (
        randn(64, 1536),
        randn(64, 3072),
        randn(1536, seed=1),
        Transform(rotation=orthonormal(12)),
    )
    before = cpu.get_threads()
    cpu.set_threads(count)
    try:
        for op, rows in (
            (partial(cpu.rotate, rotation=transform.rotation), x),
            (partial(cpu.quantize_rows, transform=transform), x),
            (partial(cpu.rmsnorm_quantize, w=gain, eps=1e-5, transform=transform), x),
            (partial(cpu.silu_mul_quantize, transform=transform), gate_up),
        ):
            assert same_bits(in_passes(op, rows, cuts), op(rows))
    finally:
        cpu.set_threads(before)


@needs_cpu
@given(rows=st.integers(1, 9), side=sides, power=st.integers(0, 7), shift=st.booleans(), smooth=st.booleans())
@settings(max_examples=30, deadline=None)
def test_shift_smoothing_and_rotation_in_the_fused_ops(rows, side, power, shift, smooth):
    size = side << power
    x, gate_up, gain = randn(rows, size), randn(rows, 2 * size), randn(size, seed=1)
    transform = Transform(
        inv_smooth=randn(size, seed=2).abs() + 0.1 if smooth else None,
        shift=randn(size, seed=3) if shift else None,
        rotation=orthonormal(side),
    )

    def check(_):
        normed, gated = cpu.rmsnorm_quantize(x, gain, 1e-5, transform), cpu.silu_mul_quantize(gate_up, transform)
        assert same_bits(normed, cpu.quantize_rows(cpu.rmsnorm(x, gain, 1e-5), transform))
        assert same_bits(gated, cpu.quantize_rows(cpu.silu_mul(gate_up), transform))
        for ours, theirs in (
            (normed, reference.rmsnorm_quantize(x, gain, 1e-5, transform)),
            (gated, reference.silu_mul_quantize(gate_up, transform)),
        ):
            close(ours[1], theirs[1])
            assert (ours[0].int() - theirs[0].int()).abs().max() <= 1  # the norm or gate differs in its last bit

    all_isas(check)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", [0, 17, 383])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_number_shows_in_its_row_alone(backend, column, bad):
    x, turn = randn(3, 384), orthonormal(12)
    x[1, column], x[2] = bad, 0.0
    ops = {"reference": reference, "cpu": cpu}[backend]

    def check(_):
        assert ops.rotate(x, turn).isfinite().all(dim=1).tolist() == [True, False, True]
        q, scale = ops.quantize_rows(x, Transform(rotation=turn))
        assert scale.isnan().tolist() == [False, True, False]
        assert scale[2] == 1.0
        assert not q[2].any()

    all_isas(check)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows_and_strided_operands(backend):
    turn = orthonormal(6)
    assert rotate(torch.empty(0, 24), turn, backend=backend).shape == (0, 24)
    for x in (randn(24, 5).T, randn(5, 48)[:, ::2]):
        assert torch.equal(rotate(x, turn.T, backend=backend), reference.rotate(x.contiguous(), turn.T.contiguous()))


def test_sides_that_fit_are_named():
    assert rotation_sides(1536) == [3, 6, 12, 24, 48, 96, 192, 384, 768, 1536]
    assert rotation_sides(43) == [43]
    assert rotation_sides(4) == [1, 2, 4]


@pytest.mark.parametrize(
    ("x", "rotation", "message"),
    [
        (randn(2, 24), torch.eye(4), "P = 3, 6, 12, 24 "),  # 24/4 is no power of two
        (randn(2, 24), torch.eye(5), "power of two"),
        (randn(2, 24), torch.eye(48), "P = 3"),
        (randn(2, 24), torch.ones(3, 6), "power of two"),
        (randn(2, 24), torch.empty(0, 0), "power of two"),
        (randn(2, 24), torch.ones(3), "accepted"),
        (randn(2, 24), torch.eye(3, dtype=torch.float64), "accepted"),
        (randn(2, 24).double(), torch.eye(3), "accepted"),
        (randn(24), torch.eye(3), "accepted"),
        (torch.empty(2, 0), torch.eye(3), "accepted"),
        (randn(2, 24).to("meta"), torch.eye(3), "unknown device"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_is_an_error(backend, x, rotation, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        rotate(x, rotation, backend=backend)
    if x.dtype == torch.float32 and x.dim() == 2 and x.is_cpu:
        with pytest.raises((ValueError, TypeError), match="accepted"):
            cpu.rotate(x, rotation)


@needs_cpu
def test_the_kernels_take_no_large_dense_factor():
    for call in (rotate, cpu.rotate):
        with pytest.raises(ValueError, match=r"3, 6, 12, 24, 48, 96, 192 .*`reference`"):
            call(randn(1, 768), torch.eye(384))
    with pytest.raises(TypeError, match="accepted"):
        cpu.rotate(randn(1, 24), torch.eye(3).to("meta"))
