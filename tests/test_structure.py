"""The shape of the project: where things lie, which way imports point, and how long a piece of code may be.

The imports between the packages of `quasar_lab` are held by the contracts in pyproject.toml, which `make lint` checks.
"""

import ast
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {".ci", ".github", "data", "kernels", "notebooks", "quasar_lab", "tests"}
PACKAGES = {
    *("support", "models", "quantization", "speculative", "evaluation"),
    *("figures", "reports", "widgets", "cli"),
}
LONGEST_CLASS = 150
LONGEST_FUNCTION = 45
"""Lines from `def` to the end. Kernels are left out: a kernel is one piece of arithmetic and cannot be cut."""
LONGEST_FILE = 600
MOST_OPEN_SIGNATURES = 20
"""Functions whose signature has `dict[str, Any]`, which says nothing about the keys."""
LONGER: dict[str, int] = {}
"""path::name → the lines that it may have, each with its reason in a comment."""


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def definitions(path, kinds):
    """(path::name, node) of every definition of these kinds, however deep."""
    return [(f"{name_of(path)}::{node.name}", node) for node in ast.walk(parsed(path)) if isinstance(node, kinds)]


def check_lengths(found, limit):
    """found: pairs of a name and its lines. Fails with all that are longer than they may be."""
    offenders = [f"{name}: {lines} lines" for name, lines in found if lines > LONGER.get(name, limit)]
    assert not offenders, "\n".join([f"at most {limit} lines are accepted", *offenders])


def test_the_folders_are_those_of_the_layout():
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not in a git checkout")
    assert {line.partition("/")[0] for line in listed.splitlines() if "/" in line} == TOP_LEVEL


def test_every_module_lies_in_a_package():
    assert {path.name for path in (ROOT / "quasar_lab").glob("*.py")} == {"__init__.py", "__main__.py"}
    assert {path.parent.name for path in (ROOT / "quasar_lab").glob("*/__init__.py")} == PACKAGES


def test_kernels_is_a_folder_and_no_package():
    """A package of that name would hide the library `kernels`, which transformers looks for."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_tests_mirror_the_packages():
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/*.py")}
    assert folders <= {*PACKAGES, "browser", "data", "kernels", "notebooks"}


def test_kernels_import_nothing_of_the_lab():
    offenders = []
    for path in python_files("kernels"):
        for node in ast.walk(parsed(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "quasar_lab" for name in names):
                offenders.append(f"{name_of(path)}:{node.lineno}")
    assert not offenders, "\n".join(offenders)


def test_no_file_is_long():
    lines = [
        (name_of(path), len(path.read_text(encoding="utf-8").splitlines()))
        for path in python_files("quasar_lab", "kernels", "tests")
    ]
    check_lengths(lines, LONGEST_FILE)


@pytest.mark.parametrize(
    ("kinds", "limit", "folders"),
    [
        (ast.ClassDef, LONGEST_CLASS, ("quasar_lab", "kernels", "tests")),
        ((ast.FunctionDef, ast.AsyncFunctionDef), LONGEST_FUNCTION, ("quasar_lab",)),
    ],
    ids=["classes", "functions"],
)
def test_no_definition_is_long(kinds, limit, folders):
    found = [pair for path in python_files(*folders) for pair in definitions(path, kinds)]
    check_lengths([(name, node.end_lineno - node.lineno + 1) for name, node in found], limit)


def test_signatures_say_what_they_take_and_return():
    offenders = []
    for path in python_files("quasar_lab"):
        for name, node in definitions(path, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = ast.walk(node.args)
            hints = [one.annotation for one in arguments if isinstance(one, ast.arg)] + [node.returns]
            if any(hint is not None and "dict[str, Any]" in ast.unparse(hint) for hint in hints):
                offenders.append(name)
    assert len(offenders) <= MOST_OPEN_SIGNATURES, "\n".join(offenders)


def test_every_exception_is_needed():
    """A limit that nothing reaches any more is taken out of LONGER."""
    names = {name_of(path) for path in python_files("quasar_lab", "kernels", "tests")}
    for path in python_files("quasar_lab", "kernels", "tests"):
        names |= {name for name, _ in definitions(path, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))}
    assert set(LONGER) <= names
