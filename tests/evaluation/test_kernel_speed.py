"""Speed of linears: every op, shape and width has its row, and fractions follow from times."""

import pytest
import quasar_kernels
import torch
from quasar_kernels import cpu

from quasar_lab.evaluation import kernel_speed
from quasar_lab.support.errors import BackendError

needs_cpu_backend = pytest.mark.skipif(
    quasar_kernels.availability()["cpu"] is not None, reason="the C++ backend is not there"
)


def packed_bytes(row):
    weight = torch.ones(row.shape, dtype=torch.int8)
    return (cpu.pack_w8a8(weight) if row.op == "linear_w8a8" else cpu.pack_bf16(weight.bfloat16())).nbytes


@needs_cpu_backend
def test_every_op_shape_and_width_has_a_row(monkeypatch):
    monkeypatch.setattr(kernel_speed, "last_level_cache", lambda: 1 << 16)
    monkeypatch.setattr(kernel_speed, "LEAST_STREAM", 1 << 20)
    result = kernel_speed.time_linears([(64, 32), (32, 64)], [1, 2], samples=2, channels=48)
    linears = [row for row in result.kernels if row.op.startswith("linear")]
    assert {(row.op, *row.shape, row.width) for row in linears} == {
        (op, *shape, width) for op in kernel_speed.KINDS for shape in ((64, 32), (32, 64)) for width in (1, 2)
    }
    for row in linears:
        assert 0 < row.us_p20 <= row.us_p50 <= row.us_p80
        assert row.gb_s == pytest.approx(packed_bytes(row) / row.us_p50 / 1e3)
        assert row.fraction_of_stream > 0
    others = [row for row in result.kernels if not row.op.startswith("linear")]
    assert {(row.op, row.width) for row in others} == {
        (op, width) for op in ("silu_mul_quantize", "silu_mul_quantize, rotated") for width in (1, 2)
    }
    assert {row.gb_s for row in others} == {row.fraction_of_stream for row in others} == {None}


def test_a_row_is_of_one_call_and_its_fraction_that_of_the_stream():
    row = kernel_speed._row("linear_w8a8", [8, 4], 1, [1e-6, 2e-6, 3e-6], gb_s=5.0, bandwidth=20.0)
    assert row.us_p50 == pytest.approx(2.0)
    assert row.fraction_of_stream == pytest.approx(0.25)
    assert kernel_speed._row("silu_mul_quantize", [8], 1, [1e-6]).fraction_of_stream is None


def test_without_the_backend_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr(cpu, "unavailable", lambda: "it was not built")
    with pytest.raises(BackendError, match="nothing to measure: it was not built"):
        kernel_speed.time_linears([(64, 32)])
