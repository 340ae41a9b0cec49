"""Results as objects: fields for people who read them, one JSON document for files and `--json`.

## Idea

A measurement returns a frozen dataclass that derives from `Result`. A reader writes `step.fraction_of_floor`, an editor
completes the name, and a type checker knows that it is a number. `to_json()` gives the same result as a document with
the keys that other programs rely on, and `from_json()` reads such a document back.

## Choice

The fields are declared once and the document follows from them. A field is written under its own name. Three helpers
say what differs: `left_out()` is a field that is absent from the document while it is None, `flat()` is a result whose
keys stand beside those of the result that holds it, and `named(key)` is a field whose key in the document has another
name. `result["key"]` reads a value as the document has it, so that a script written against the JSON also works on the
object.

## What is lost

`from_json` checks that every field is there and is of the right kind (a number, a text, a list …). It does not check
ranges: that is the work of `json_schema`, for files that other people wrote.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from quasar_lab.support.errors import InputError

Json = dict[str, Any]
"""A JSON object: the border between this package and files, other programs and people."""

T = TypeVar("T")


def left_out() -> Any:
    """A field that is None by default, and then absent from the document."""
    return field(default=None, metadata={"left_out": True})


def flat() -> Any:
    """A field that holds a result whose keys stand in the document beside those of its holder."""
    return field(metadata={"flat": True})


def named(key: str) -> Any:
    """A field whose key in the document is `key`."""
    return field(metadata={"key": key})


@dataclass(frozen=True)
class Result:
    """Base of every result. Subclasses are frozen dataclasses whose fields are numbers, texts, lists, dictionaries or
    results."""

    def to_json(self) -> Json:
        """The result as a JSON object; tuples become lists, nothing of the result is shared."""
        document: Json = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if value is None and part.metadata.get("left_out"):
                continue
            if part.metadata.get("flat"):
                document.update(value.to_json())
            else:
                document[part.metadata.get("key", part.name)] = _plain(value)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The result that `document` holds; keys that this version does not know are ignored.

        Raises InputError, naming the key, on a document that lacks a field or holds another kind of value.
        """
        hints = get_type_hints(cls)
        values: Json = {}
        for part in fields(cls):
            key = part.metadata.get("key", part.name)
            if part.metadata.get("flat"):
                values[part.name] = hints[part.name].from_json(document)
            elif key in document:
                values[part.name] = _read(document[key], hints[part.name], key)
            elif part.default is MISSING and part.default_factory is MISSING:
                raise InputError(f"the result lacks {key!r}; accepted: what the to_json() of {cls.__name__} writes")
        return cls(**values)

    @classmethod
    def of(cls, found: "Result | Mapping[str, Any]") -> Self:
        """`found` itself where it is such a result, else the result that the document `found` holds."""
        if isinstance(found, cls):
            return found
        return cls.from_json(found.to_json() if isinstance(found, Result) else found)

    def __getitem__(self, key: str) -> Any:
        """The value that the document holds under `key`. Raises KeyError as a dictionary does."""
        return self.to_json()[key]

    def __contains__(self, key: str) -> bool:
        return key in self.to_json()


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _read(value: Any, hint: Any, key: str) -> Any:
    """`value` as the type `hint` says: results, lists and tuples of them, dictionaries of them."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        choices = [choice for choice in inner if choice is not type(None)]
        if len(choices) > 1:  # a number or a text, say: the value itself tells which
            return next((value for choice in choices if isinstance(value, get_origin(choice) or choice)), value)
        return _read(value, choices[0], key)
    if is_dataclass(hint):
        return _of_kind(value, dict, key) and hint.from_json(value)  # type: ignore[union-attr]
    if origin in (list, tuple, Sequence) or hint in (list, tuple):
        items = _of_kind(value, list, key)
        kinds = inner[:1] * len(items) if origin is not tuple or Ellipsis in inner else inner
        read = [_read(item, kind, key) for item, kind in zip(items, kinds or [Any] * len(items), strict=True)]
        return tuple(read) if origin is tuple else read
    if origin in (dict, Mapping):
        to_key = int if inner[0] is int else str
        return {
            to_key(name): _read(item, inner[1], f"{key}.{name}") for name, item in _of_kind(value, dict, key).items()
        }
    if hint is float:
        return float(_of_kind(value, (int, float), key))
    return _of_kind(value, hint, key) if isinstance(hint, type) else value


def _of_kind(value: T, kind: Any, key: str) -> T:
    """`value`, if it is of this kind. Raises InputError, naming the key."""
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
        return value
    names = ", ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
    raise InputError(f"{key} is {value!r:.60}; accepted: {names}")
