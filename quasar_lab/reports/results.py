"""Key numbers: how a notebook tells the report what it found.

A cell displays a key number like any other value. Its output carries the number in a JSON form of its own kind, which
the report collects.
"""

from dataclasses import dataclass
from typing import Any

from quasar_lab.support.errors import InputError
from quasar_lab.support.readable import readable
from quasar_lab.support.result import Json, Result

MIME = "application/vnd.quasar-lab.result+json"


@dataclass(frozen=True)
class KeyNumber(Result):
    """One number, or short text, with a name and a unit."""

    name: str
    value: float | int | bool | str | None
    unit: str = ""

    @property
    def shown(self) -> str:
        """The value as people read it. A fraction has three figures, also where the last ones are zero."""
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if isinstance(self.value, float):
            return readable(self.value)
        return "none" if self.value is None else str(self.value)

    def __str__(self) -> str:
        return f"{self.name}: {self.shown} {self.unit}".rstrip()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Json:
        return {MIME: self.to_json(), "text/plain": str(self)}


def result(name: str, value: float | int | str | None, unit: str = "") -> KeyNumber:
    """A key number for the report's index page: the last expression of a cell, or given to `display`.

    Raises InputError on a value that JSON cannot hold.
    """
    if not (value is None or isinstance(value, int | float | str)):
        raise InputError(f"result {name!r} is {type(value).__name__}; accepted: a number, a text or None")
    if isinstance(value, float) and value - value != 0:
        raise InputError(f"result {name!r} is {value}; accepted: a finite number, a text or None")
    return KeyNumber(name, value, unit)
