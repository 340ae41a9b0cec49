"""The largest logits of a row: the same ids in every backend, ties by lowest id, bits that depend on no width or thread
count."""

import pytest
import torch
from kernel_cases import randn, same_bits
from quasar_kernels import cpu, reference, top_rows

BACKENDS = [reference] if cpu.unavailable() else [reference, cpu]
needs_cpu = pytest.mark.skipif(cpu.unavailable() is not None, reason=str(cpu.unavailable()))


@pytest.fixture
def restored():
    before = cpu.isa(), cpu.get_threads()
    yield
    cpu.set_isa(before[0])
    cpu.set_threads(before[1])


@needs_cpu
@pytest.mark.parametrize("isa", [] if cpu.unavailable() else cpu.supported_isas())
@pytest.mark.parametrize("size", [1, 3, 15, 16, 33, 577, 8192, 8193, 49153])
def test_values_and_ids_equal_the_reference(restored, isa, size):
    cpu.set_isa(isa)
    for x in (
        randn(3, size) * 5,
        (randn(3, size) * 2).round(),
        torch.full((2, size), -torch.inf),
        -randn(2, size).abs(),
    ):
        for k in {1, min(5, size), min(16, size), min(17, size), min(100, size)}:
            ours, theirs = cpu.top_rows(x, k), reference.top_rows(x, k)
            assert same_bits(ours[:2], theirs[:2])
            torch.testing.assert_close(ours[2], theirs[2], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("ops", BACKENDS)
def test_ties_infinities_and_bad_numbers(ops):
    x = torch.zeros(5, 9000)
    x[1, [8500, 40, 4]] = 7.0
    x[2, 8999] = torch.inf
    x[3, 8] = torch.nan
    x[4] = -torch.inf
    values, ids, log_sums = ops.top_rows(x, 4)
    assert ids.tolist() == [[0, 1, 2, 3], [4, 40, 8500, 0], [8999, 0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert values[1].tolist() == [7.0, 7.0, 7.0, 0.0]
    assert values[3].isnan().all()
    assert log_sums.isnan().tolist() == [False, False, False, True, False]
    assert (log_sums[2], log_sums[4]) == (torch.inf, -torch.inf)


@pytest.mark.parametrize("ops", BACKENDS)
def test_probabilities_follow_without_the_vocabulary(ops):
    x = randn(2, 20000) * 4
    values, ids, log_sums = ops.top_rows(x, 5)
    expected = torch.softmax(x.double(), dim=-1).gather(1, ids).float()
    torch.testing.assert_close((values - log_sums[:, None]).exp(), expected, rtol=1e-5, atol=1e-7)


@needs_cpu
def test_a_row_has_the_same_bits_at_every_width_and_thread_count(restored):
    x = randn(9, 20000)
    whole = cpu.top_rows(x, 7)
    for threads in (1, 2, 3):
        cpu.set_threads(threads)
        for row in range(9):
            assert same_bits(cpu.top_rows(x[row : row + 1], 7), tuple(part[row : row + 1] for part in whole))


@needs_cpu
def test_all_of_a_row_can_be_asked_for():
    x = randn(1, 20000)
    assert same_bits(cpu.top_rows(x, 20000)[:2], reference.top_rows(x, 20000)[:2])
    assert same_bits(cpu.top_rows(x.T.contiguous().T, 9), cpu.top_rows(x, 9))


@pytest.mark.parametrize("k", [0, -1, 11])
def test_a_k_that_does_not_fit_is_refused(k):
    for op in [top_rows] + [cpu.top_rows] * (cpu.unavailable() is None):
        with pytest.raises(ValueError, match="accepted"):
            op(randn(2, 10), k)
