"""JSON that others wrote: parsed with care, and checked against a schema.

## Idea

A *schema* is a function (value, its name) → one sentence on the first fault, or None. Small schemas are combined to
larger ones, so the format of a file reads as a table (`trace_schema.HEADER`), and every fault in it is told in the same
way: where it is, what was given, what is accepted.

## Choice

The schemas are functions of this module and not the standard JSON Schema. A library for that would tell a fault in its
own words, and the package would depend on it.
"""

import json
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Schema = Callable[[Any, str], str | None]
"""(value, its name) → what is wrong with it, or None."""

DEEPEST = 64
"""The most levels that a document may have."""

LARGEST = sys.float_info.max


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) of the lines of JSON lines that are not blank. Only a line feed ends a line: str.splitlines would
    also cut at U+2028 and others, which JSON texts may hold."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def parse(text: str) -> Any:
    """The value of a JSON text.

    Raises ValueError, saying why, on what is no JSON, and on what Python reads but other programs refuse: NaN and
    infinities, half characters (lone surrogates), more than 64 levels.
    """
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


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _first(faults: Iterable[str | None]) -> str | None:
    return next(filter(None, faults), None)


def _schema(accepted: str, holds: Callable[[Any], bool]) -> Schema:
    """The schema of the values for which `holds` is true. accepted: the same in words."""

    def check(value: Any, name: str) -> str | None:
        return None if holds(value) else f"{name} is {reprlib.repr(value)}; accepted: {accepted}"

    return check


TEXT = _schema("a text", lambda value: isinstance(value, str))
BOOLEAN = _schema("true, false", lambda value: isinstance(value, bool))
OBJECT = _schema("a JSON object", lambda value: isinstance(value, dict))


def integer(low: int, high: int) -> Schema:
    """A whole number from `low` to `high`."""
    return _schema(f"a whole number, {low}…{high}", lambda value: type(value) is int and low <= value <= high)


def number(low: float = -LARGEST, high: float = LARGEST) -> Schema:
    """A finite number from `low` to `high`."""
    bounds = "" if (low, high) == (-LARGEST, LARGEST) else f", {low:g}…{high:g}"
    return _schema(f"a number{bounds}", lambda value: type(value) in (int, float) and low <= value <= high)


def one_of(*texts: str) -> Schema:
    """One of these texts."""
    return _schema(", ".join(texts), lambda value: isinstance(value, str) and value in texts)


def optional(schema: Schema) -> Schema:
    """null, or what `schema` accepts."""
    return lambda value, name: None if value is None else schema(value, name)


def all_of(*schemas: Schema) -> Schema:
    """What every schema accepts. They are asked in order, so later ones may rely on what earlier ones found."""
    return lambda value, name: _first(schema(value, name) for schema in schemas)


def list_of(schema: Schema, least: int = 0, most: int = sys.maxsize) -> Schema:
    """A list of `least` to `most` items, each accepted by `schema`."""
    size = f"{least}…{most} items" if most < sys.maxsize else f"at least {least} items" if least else "any length"
    return all_of(
        _schema(f"a list, {size}", lambda value: isinstance(value, list) and least <= len(value) <= most),
        lambda value, name: _first(schema(item, f"{name}[{place}]") for place, item in enumerate(value)),
    )


def row_of(*schemas: Schema) -> Schema:
    """A list of fixed length, with a schema for each place."""
    return all_of(
        list_of(lambda value, name: None, len(schemas), len(schemas)),
        lambda value, name: _first(schema(value[place], f"{name}[{place}]") for place, schema in enumerate(schemas)),
    )


def mapping_of(schema: Schema) -> Schema:
    """An object with any keys, whose values are all accepted by `schema`."""
    return all_of(
        OBJECT,
        lambda value, name: _first(schema(item, f"{name}[{reprlib.repr(key)}]") for key, item in value.items()),
    )


def fields(schemas: Mapping[str, Schema], closed: bool = False) -> Schema:
    """An object with these keys. A key that is written "key?" may be missing. closed: no other keys are accepted. The
    name "" is the document itself."""
    known = {key.removesuffix("?"): (schema, key.endswith("?")) for key, schema in schemas.items()}

    def check(value: Any, name: str) -> str | None:
        for key, (schema, may_lack) in known.items():
            child = f"{name}.{key}" if name else key
            if key not in value:
                if not may_lack:
                    return f"{child} is missing"
            elif fault := schema(value[key], child):
                return fault
        extra = sorted(set(value) - set(known)) if closed else []
        return f"{reprlib.repr(extra[0])} is unknown; accepted: {', '.join(known)}" if extra else None

    return all_of(lambda value, name: OBJECT(value, name or "it"), check)


def lengths(**surplus: int) -> Schema:
    """An object whose lists under these keys belong together: all have the same length, each plus its surplus."""

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
