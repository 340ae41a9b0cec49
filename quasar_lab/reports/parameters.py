"""What a notebook can be told: the assignments of its cell tagged `parameters`, and their types.

papermill accepts any name and any value, so with a misspelt name a report would run for minutes and change nothing.
Here names and types are checked against the notebook before anything runs.

A default is a literal, or arithmetic on numbers (`10**3`). It is read, never run. A parameter may carry an annotation.
One whose default is `None` takes any value.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from nbformat import NotebookNode

from quasar_lab.support.errors import InputError

Parameters = dict[str, Any]
"""Name → value: a literal of Python."""

WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
"""What true and false may be called on the command line."""

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}

LARGEST, LARGEST_POWER = 2**64, 64
"""Whole numbers and exponents that arithmetic takes at most, so that `9**9**9` is refused and not computed."""

NOT_A_LITERAL = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
"""What Python's parser and `ast.literal_eval` raise on texts that are none."""

PASSED_ON = (bool, int, float, str, list, tuple, dict, type(None))
"""Types of values that papermill writes into a notebook as they are. Others would arrive as texts."""


def defaults(notebook: NotebookNode, name: str) -> Parameters:
    """Parameter → default, in order. Empty without a tagged cell. Raises InputError on a cell that holds anything but
    assignments of literals and of arithmetic on numbers."""
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    found: Parameters = {}
    for cell in cells:
        try:
            for statement in ast.parse(cell.source).body:
                found |= _assigned(statement)
        except NOT_A_LITERAL as error:
            raise InputError(
                f"the parameters cell of {name} is not understood ({_why(error)}); accepted: lines like layer = 3, "
                "layer: int = 3 or tokens = 10**3"
            ) from error
    return found


def _assigned(statement: ast.stmt) -> Parameters:
    """What one statement assigns; raises ValueError when it is no plain assignment. A text alone is a remark."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return {}
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets: list[ast.expr] = [statement.target]
        value = _value(statement.value)
        if isinstance(statement.annotation, ast.Name) and statement.annotation.id == "float" and type(value) is int:
            value = float(value)
    elif isinstance(statement, ast.Assign):
        targets, value = statement.targets, _value(statement.value)
    else:
        raise ValueError(f"`{_first_line(statement)}` assigns nothing")
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    if len(names) < len(targets):
        raise ValueError(f"`{_first_line(statement)}` assigns to more than a name")
    return dict.fromkeys(names, value)


def _value(node: ast.expr) -> Any:
    """The value of a literal whose numbers may be computed; raises ValueError on anything else."""
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _number(node.operand)
        return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return _computed(node, _number(node.left), _number(node.right))
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(f"`{_first_line(node)}` is no literal") from error


def _number(node: ast.expr) -> int | float:
    value = _value(node)
    if type(value) not in (int, float):
        raise ValueError(f"`{_first_line(node)}` is no number")
    return value


def _computed(node: ast.BinOp, left: int | float, right: int | float) -> int | float:
    """Arithmetic that neither takes long nor fills memory."""
    highest = LARGEST_POWER if isinstance(node.op, ast.Pow) else LARGEST
    if any(type(number) is int and abs(number) > most for number, most in ((left, LARGEST), (right, highest))):
        raise ValueError(f"`{_first_line(node)}` is too large")
    try:
        value = ARITHMETIC[type(node.op)](left, right)
    except ArithmeticError as error:
        raise ValueError(f"`{_first_line(node)}` has no value") from error
    if type(value) not in (int, float):
        raise ValueError(f"`{_first_line(node)}` is no number")
    return value


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def _why(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    return str(error) or "it is nested too deeply"


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
    if not isinstance(value, PASSED_ON) or kind not in PASSED_ON:
        raise wrong
    if kind is str:
        if not isinstance(value, str):
            raise wrong
        return value
    if default is None:
        return _literal_or_text(value) if isinstance(value, str) else value
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


def _literal_or_text(text: str) -> Any:
    """What a text of the command line means where any value is accepted."""
    try:
        value = ast.literal_eval(text)
    except NOT_A_LITERAL:
        return text
    return value if isinstance(value, PASSED_ON) else text


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
    except NOT_A_LITERAL as error:
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
