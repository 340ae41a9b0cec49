"""Compensated rounding lowers the output error, never leaves the INT8 range, and is dropped where it does not help."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quasar_kernels.reference import rotate

from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.gptq import expected_error, quantize_weight, round_compensated, round_weight
from quasar_lab.quantization.rotation import balanced_factors, hadamard, rotation_matrix


def inputs(rows, k, seed):
    """Correlated rows: a few directions carry most of the energy."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(max(k // 4, 1), k, generator=generator)
    few = torch.randn(rows, basis.shape[0], generator=generator) @ basis
    return few + 0.1 * torch.randn(rows, k, generator=generator)


def test_errors_cancel_on_correlated_inputs():
    x, fresh = inputs(600, 160, 0).split(300)
    weight = torch.randn(40, 160, generator=torch.Generator().manual_seed(1))
    gram, held_out = x.T @ x, fresh.T @ fresh
    nearest = expected_error(weight, *quantize_weight(weight), held_out)
    assert expected_error(weight, *round_compensated(weight, gram), held_out) < 0.5 * nearest


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 150), st.integers(1, 8), st.integers(0, 1000))
def test_any_shape_any_data(n, k, rows, seed):
    """Fewer rows than channels, dead channels, rows of zeros: finite, in range, and no worse than nearest held out."""
    generator = torch.Generator().manual_seed(seed)
    x, weight = inputs(rows, k, seed), torch.randn(n, k, generator=generator)
    x[:, torch.rand(k, generator=generator) < 0.2] = 0
    weight[n // 2] = 0
    before, gram = weight.clone(), x.T @ x
    held_out = inputs(3, k, seed + 1)
    held_out = held_out.T @ held_out
    wq, scale = round_weight(weight, gram, held_out)
    assert wq.dtype == torch.int8
    assert int(wq.abs().max()) <= 127
    assert bool(torch.isfinite(scale).all())
    nearest = expected_error(weight, *quantize_weight(weight), held_out)
    assert expected_error(weight, wq, scale, held_out) <= nearest * 1.0001
    assert torch.equal(weight, before)


def test_expected_error_is_that_of_the_rows():
    x, weight = inputs(20, 12, 3), torch.randn(5, 12)
    wq, scale = quantize_weight(weight)
    direct = float((x @ (weight - wq.float() * scale[:, None]).T).square().sum())
    assert abs(expected_error(weight, wq, scale, x.T @ x) - direct) < 1e-3 * direct


def test_hadamard_matrices_are_what_they_say():
    found = {size: hadamard(size) for size in range(1, 70)}
    assert {size for size, matrix in found.items() if matrix is not None} >= {1, 2, 4, 8, 12, 20, 24, 44}
    for size, matrix in found.items():
        if matrix is not None:
            assert torch.equal(matrix.abs(), torch.ones(size, size)), size
            assert torch.equal(matrix @ matrix.T, size * torch.eye(size)), size


def test_a_rotation_of_every_size_keeps_lengths():
    for size in (1, 2, 3, 7, 64, 74, 96, 576, 1536, 2432, 11008, 18944):
        matrix = rotation_matrix(size)
        x = torch.randn(2, size, generator=torch.Generator().manual_seed(size))
        turned = rotate(x, matrix)
        assert torch.allclose(turned.norm(dim=1), x.norm(dim=1), rtol=1e-4), size
        assert torch.allclose(rotate(turned, matrix.T.contiguous()), x, atol=1e-4), size
    assert rotation_matrix(2 * 131) is None, "a dense factor that costs as much as a linear"
    assert [len(rotation_matrix(size)) for size in (64, 576, 1536, 12288)] == [1, 9, 12, 12], "small and even"
    assert [len(rotation_matrix(size)) for size in (16384, 32768, 65536)] == [1, 2, 4], "no longer than a block holds"


def test_balanced_factors_make_the_noise_least():
    """‖x/s‖² · ‖W·s‖² has its minimum there: any other factors give more."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.rand(50, generator=generator) ** 4 + 1e-4 for _ in range(2))

    def noise(s):
        return float((x / s**2).sum() * (w * s**2).sum())

    s = balanced_factors(x, w)
    assert all(noise(s * torch.exp(0.1 * torch.randn(50, generator=generator))) > noise(s) for _ in range(20))
    dead = balanced_factors(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 2.0]))
    assert dead[0] == dead[1] == 1


def test_an_input_map_is_exact_before_rounding():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 48, generator=generator), torch.randn(7, 48, generator=generator)
    for input_map in (
        InputMap(torch.rand(48, generator=generator) + 0.5),
        InputMap(torch.rand(48, generator=generator) + 0.5, rotation_matrix(48)),
        InputMap(torch.rand(48, generator=generator) + 0.5, rotation_matrix(16), 16),
    ):
        mapped = input_map.inputs(x)
        assert torch.allclose(mapped @ input_map.weight(weight).T, x @ weight.T, atol=1e-4)
        assert torch.allclose(input_map.gram(x.T @ x), mapped.T @ mapped, atol=1e-3)
