"""Numbers of any library are accepted where they mean one number, and nothing else is."""

import numpy as np
import pytest
import torch

from quasar_lab.support.errors import InputError
from quasar_lab.support.numbers import real, whole, whole_numbers


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3), torch.tensor([3])], ids=repr)
def test_whole_numbers_of_any_kind(value):
    found = whole(value, "n", "1…9", 1, 9)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize(
    "value", [2.5, 3.0, None, "3", [3], np.float64(3), torch.tensor([3, 4]), torch.tensor(2.5), object], ids=repr
)
def test_what_is_no_whole_number(value):
    with pytest.raises(InputError, match=r"n is .*; accepted: whole numbers, 1…9"):
        whole(value, "n", "1…9", 1, 9)


@pytest.mark.parametrize("value", [0, 10, -1, 2**70])
def test_whole_numbers_outside(value):
    with pytest.raises(InputError, match=f"n is {value}; accepted: 1…9"):
        whole(value, "n", "1…9", 1, 9)


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), torch.tensor(0.5), True], ids=repr)
def test_numbers(value):
    assert real(value, "x", "any") == float(value)


@pytest.mark.parametrize("value", [None, "0.5", b"1", [1], torch.tensor([1.0, 2.0]), np.ones(2), 10**400], ids=str)
def test_what_is_no_number(value):
    with pytest.raises(InputError, match=r"x is .*; accepted: any"):
        real(value, "x", "any")


@pytest.mark.parametrize("values", [[5, 6], (5, 6), np.array([5, 6]), torch.tensor([5, 6]), [np.int32(5), 6]], ids=repr)
def test_ids(values):
    found = whole_numbers(values, "ids")
    assert found == [5, 6]
    assert all(type(token) is int for token in found)


@pytest.mark.parametrize("values", [[1, 2.5], np.array([0.5]), torch.ones(2, 2), ["a"], [None]], ids=repr)
def test_what_are_no_ids(values):
    with pytest.raises(InputError, match=r"ids: number .*accepted: whole numbers"):
        whole_numbers(values, "ids")
