"""What a notebook can be told: the plain literals of its cell tagged `parameters`, and their types.

papermill accepts any name and any value, so with a misspelt name a report would run for minutes and change nothing.
Here names and types are checked against the notebook before anything runs.
"""

import ast
from collections.abc import Mapping
from typing import Any

from nbformat import NotebookNode

from quasar_lab.support.errors import InputError

Parameters = dict[str, Any]
"""Name → value: a literal of Python."""

WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
"""What true and false may be called on the command line."""


def defaults(notebook: NotebookNode, name: str) -> Parameters:
    """Parameter → default, in order. Empty without a tagged cell. Raises InputError on a cell that holds anything but
    assignments of literals."""
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    found: Parameters = {}
    for cell in cells:
        try:
            for statement in ast.parse(cell.source).body:
                if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
                    raise ValueError("not an assignment")
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
        except (SyntaxError, ValueError) as error:
            raise InputError(f"the parameters cell of {name} is not understood; accepted: name = literal") from error
    return found


def fit(given: Mapping[str, Any], notebooks: Mapping[str, Mapping[str, Any]]) -> dict[str, Parameters]:
    """Notebook → the `given` values that it has a parameter for, converted to the types of its defaults. notebooks:
    name → its defaults.

    Raises InputError on a name that no notebook has, and on a value of another type.
    """
    known = sorted({name for own in notebooks.values() for name in own})
    for name in given:
        if name not in known:
            raise InputError(f"unknown parameter {name!r}; accepted: {', '.join(known) or 'none'}")
    return {
        notebook: {name: convert(name, value, own[name]) for name, value in given.items() if name in own}
        for notebook, own in notebooks.items()
    }


def convert(name: str, value: Any, default: Any) -> Any:
    """`value`, a text from the command line or a Python value, as the type of `default`. Raises InputError when it
    cannot be one."""
    kind = type(default)
    wrong = InputError(f"parameter {name!r} is {value!r}; accepted: {_words(default)}")
    if kind is str:
        if not isinstance(value, str):
            raise wrong
        return value
    if isinstance(value, str):
        words = kind is list and bool(default) and isinstance(default[0], str)
        value = _split(value) if words and value[:1] not in ("[", "'", '"') else _parse(value, kind, wrong)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise wrong
    if kind in (list, tuple) and default and not all(isinstance(item, type(default[0])) for item in value):
        raise wrong
    return value


def _split(text: str) -> list[str]:
    """ "a,b" where a list of texts is meant: nobody quotes words on a command line."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _parse(text: str, kind: type, wrong: InputError) -> Any:
    if kind is bool:
        if text.lower() not in WORDS:
            raise wrong
        return WORDS[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise wrong from error
    # "1,4,8" reads as a tuple, and "4" as a number, where a list is meant.
    if kind is list and not isinstance(value, list):
        return list(value) if isinstance(value, tuple) else [value]
    return value


def _words(default: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    if isinstance(default, list | tuple):
        inner = f" of values like {default[0]!r}" if default else ""
        return f"a list{inner}, e.g. {','.join(map(str, default))}"
    return names.get(type(default), type(default).__name__)
