"""Numbers that a person hands over, checked before anything runs.

A whole number may be a Python int, a numpy integer or a tensor of one integer: whatever Python itself accepts as an
index. 2.5 is none, and neither are None and "2". Numbers that need not be whole may be of any kind that Python turns
into a float, texts left out.
"""

import operator
from collections.abc import Iterable
from typing import Any, SupportsFloat

from quasar_lab.support.errors import InputError


def whole(value: Any, name: str, accepted: str, least: int | None = None, most: int | None = None) -> int:
    """`value` as an int. Raises InputError unless it is a whole number from `least` to `most`, both included; the
    sentence names it and says what is `accepted`."""
    try:
        found = operator.index(value)
    except (TypeError, ValueError) as error:  # ValueError: a tensor of several numbers
        raise InputError(f"{name} is {value!r}; accepted: whole numbers, {accepted}") from error
    if (least is not None and found < least) or (most is not None and found > most):
        raise InputError(f"{name} is {found}; accepted: {accepted}")
    return found


def real(value: Any, name: str, accepted: str) -> float:
    """`value` as a float. Raises InputError on a text, None, or what is no single number."""
    fault = InputError(f"{name} is {value!r}; accepted: {accepted}")
    if isinstance(value, (str, bytes)) or not isinstance(value, SupportsFloat):
        raise fault
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # a tensor of several numbers, a huge integer
        raise fault from error


def whole_numbers(values: Iterable[Any], name: str) -> list[int]:
    """Token ids: a list, an array [N] or a tensor [N]. Raises InputError on anything among them that is no whole
    number."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    return [whole(value, f"{name}: number {place}", "as ids are") for place, value in enumerate(listed, 1)]
