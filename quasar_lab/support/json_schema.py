"""JSON that others wrote: read with care, and compared with the form it should have.

A *form* is a function (value, its name) → one sentence on the first thing that is wrong, or None. Small forms are put
together to large ones, so that a file format reads as a table (`trace.HEADER`, `checkpoints.CONFIG`), and every fault
in it is named the same way: where, what was given, what is accepted.
"""

import json
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Form = Callable[[Any, str], str | None]

DEEPEST = 64
LARGEST = sys.float_info.max


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) of the lines of JSON lines that hold something. Only a line feed ends one: str.splitlines would
    also cut at U+2028 and others, which JSON texts may hold."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def parse(text: str) -> Any:
    """JSON → value. Raises ValueError, saying why, on what is no JSON, and on what Python reads but cannot pass on: NaN
    and infinities, half characters (lone surrogates), more than 64 levels."""
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("it holds half of a surrogate pair") from error
    except RecursionError as error:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from error
    level = [value]
    for _ in range(DEEPEST):
        level = [child for item in level for child in _children(item)]
        if not level:
            return value
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _finite(text: str) -> float:
    number = float(text)
    if not abs(number) <= LARGEST:
        raise ValueError(f"{text} is no finite number")
    return number


def _children(item: Any) -> Any:
    return item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()


def _first(faults: Iterable[str | None]) -> str | None:
    return next(filter(None, faults), None)


def _form(accepted: str, holds: Callable[[Any], bool]) -> Form:
    def check(value: Any, name: str) -> str | None:
        return None if holds(value) else f"{name} is {reprlib.repr(value)}; accepted: {accepted}"

    return check


TEXT = _form("a text", lambda value: isinstance(value, str))
BOOLEAN = _form("true, false", lambda value: isinstance(value, bool))
OBJECT = _form("a JSON object", lambda value: isinstance(value, dict))


def integer(low: int, high: int) -> Form:
    return _form(f"a whole number, {low}…{high}", lambda value: type(value) is int and low <= value <= high)


def number(low: float = -LARGEST, high: float = LARGEST) -> Form:
    """Finite; bounds included."""
    bounds = "" if (low, high) == (-LARGEST, LARGEST) else f", {low:g}…{high:g}"
    return _form(f"a number{bounds}", lambda value: type(value) in (int, float) and low <= value <= high)


def one_of(*texts: str) -> Form:
    return _form(", ".join(texts), lambda value: isinstance(value, str) and value in texts)


def optional(form: Form) -> Form:
    """null, or the form."""
    return lambda value, name: None if value is None else form(value, name)


def all_of(*forms: Form) -> Form:
    """Every form, in order: later ones may rely on what earlier ones found."""
    return lambda value, name: _first(form(value, name) for form in forms)


def list_of(form: Form, least: int = 0, most: int = sys.maxsize) -> Form:
    size = f"{least}…{most} items" if most < sys.maxsize else f"at least {least} items" if least else "any length"
    return all_of(
        _form(f"a list, {size}", lambda value: isinstance(value, list) and least <= len(value) <= most),
        lambda value, name: _first(form(item, f"{name}[{place}]") for place, item in enumerate(value)),
    )


def row_of(*forms: Form) -> Form:
    """A list of fixed length, with a form for each place."""
    return all_of(
        list_of(lambda value, name: None, len(forms), len(forms)),
        lambda value, name: _first(form(value[place], f"{name}[{place}]") for place, form in enumerate(forms)),
    )


def mapping_of(form: Form) -> Form:
    """An object whose values all have one form."""
    return all_of(
        OBJECT,
        lambda value, name: _first(form(item, f"{name}[{reprlib.repr(key)}]") for key, item in value.items()),
    )


def fields(forms: Mapping[str, Form], closed: bool = False) -> Form:
    """An object with these keys; one written "key?" may be missing. closed: no other keys. The name "" is the document
    itself."""
    known = {key.removesuffix("?"): (form, key.endswith("?")) for key, form in forms.items()}

    def check(value: Any, name: str) -> str | None:
        for key, (form, may_lack) in known.items():
            child = f"{name}.{key}" if name else key
            if key not in value:
                if not may_lack:
                    return f"{child} is missing"
            elif fault := form(value[key], child):
                return fault
        extra = sorted(set(value) - set(known)) if closed else []
        return f"{reprlib.repr(extra[0])} is unknown; accepted: {', '.join(known)}" if extra else None

    return all_of(lambda value, name: OBJECT(value, name or "it"), check)


def lengths(**surplus: int) -> Form:
    """Lists under these keys that belong together: each as long as the others, give or take its surplus."""

    def check(value: Any, name: str) -> str | None:
        counts = {key: len(value[key]) for key in surplus}
        if len({count - surplus[key] for key, count in counts.items()}) == 1:
            return None
        found = ", ".join(f"{key} {count}" for key, count in counts.items())
        wanted = (
            "one length"
            if not any(surplus.values())
            else "one length, and one more for " + ", ".join(key for key, more in surplus.items() if more)
        )
        return f"{name + ': ' if name else ''}the lengths differ ({found}); accepted: {wanted}"

    return check
