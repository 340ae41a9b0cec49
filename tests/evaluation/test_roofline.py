"""Roofs: where memory is the bound, where arithmetic is, and what passes reached under them."""

from dataclasses import replace

import pytest
from speed_results import steps_of

from quasar_lab.evaluation.roofline import roofs
from quasar_lab.support.errors import InputError


def test_memory_bounds_a_narrow_pass_and_arithmetic_a_wide_one():
    bf16, w8a8 = roofs(steps_of(widths=(40, 1)))
    assert (bf16.verifier, w8a8.verifier) == ("bf16", "w8a8")
    assert bf16.ridge == pytest.approx(50.0 / 20.0)
    assert [point.row.width for point in bf16.points] == [1, 40]
    assert [point.intensity for point in bf16.points] == pytest.approx([1.5, 60.0])
    assert [point.possible for point in bf16.points] == pytest.approx([30.0, 50.0])
    assert [point.possible for point in w8a8.points] == pytest.approx([60.0, 100.0])
    assert bf16.allowed(bf16.ridge) == pytest.approx(50.0)


def test_the_slow_end_of_the_time_is_the_low_end_of_the_rate():
    (point,) = roofs(steps_of(("bf16",), widths=(1,)))[0].points
    assert (point.slow, point.measured, point.fast) == pytest.approx((300 / 40, 300 / 21, 300 / 19))


def test_a_result_without_ceilings_has_no_roof():
    with pytest.raises(InputError, match="no operations and ceilings"):
        roofs(replace(steps_of(), ceilings=None))
