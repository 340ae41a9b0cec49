"""Reports where a kernel, an output or a name is not what anybody expected: one sentence, and the others go on."""

import importlib
import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from papermill.exceptions import PapermillException
from traitlets import TraitError
from zmq import ZMQError

from quasar_lab import reports
from quasar_lab.reports.results import MIME

build = importlib.import_module("quasar_lab.reports.build")  # the package's name for it is the function


def write(folder, name, *sources):
    cells = [new_markdown_cell(f"# About <{name.encode(errors='replace').decode()}>"), *map(new_code_cell, sources)]
    path = folder / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def outcomes(out):
    return {run["name"]: run["error"] for run in json.loads((out / "results.json").read_text())["notebooks"]}


@pytest.mark.slow
def test_a_kernel_that_dies_and_an_entry_of_a_removed_environment_stop_no_other(tmp_path, monkeypatch, capfd):
    removed = tmp_path / "jupyter" / "kernels" / "python3"
    removed.mkdir(parents=True)
    argv = ["/no/such/environment/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (removed / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Mine", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    dies = write(tmp_path, "dies", "import os\nos.write(2, b'out of luck\\n')\nos._exit(3)")
    good = write(tmp_path, "run #1", "1 + 1")
    assert not reports.build([dies, good], tmp_path / "out", {}, timeout=60)
    assert outcomes(tmp_path / "out") == {"dies": "the kernel died (out of luck)", "run #1": None}
    assert "the kernel died (out of luck)" in (tmp_path / "out" / "index.html").read_text()
    assert len(capfd.readouterr().err.splitlines()) == 4


@pytest.mark.slow
def test_a_kernel_that_cannot_start_is_one_sentence(tmp_path, monkeypatch, capfd):
    start = "import sys\nif 'ipykernel_launcher' in str(sys.orig_argv): raise SystemExit('the start file says no')"
    (tmp_path / "sitecustomize.py").write_text(start)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert not reports.build([write(tmp_path, "some", "1")], tmp_path / "out", {}, timeout=60)
    (said,) = outcomes(tmp_path / "out").values()
    assert said.startswith("the kernel could not be used: Kernel died")
    assert said.endswith("(SystemExit: the start file says no)")
    assert len(capfd.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(
    "failure",
    [
        FileNotFoundError(2, "No such file", "/gone/python"),
        PermissionError(13, "Permission denied"),
        RuntimeError("Kernel died before replying to kernel_info\nand more"),
        DeadKernelError("Kernel died"),
        NoSuchKernel("python3"),
        TraitError("argv"),
        ZMQError(24),
        PapermillException("odd"),
        nbformat.ValidationError("5 is not valid\n\nIn [1]"),
        json.JSONDecodeError("Expecting value", "{", 1),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_what_jupyter_raises_is_one_sentence_and_the_next_notebook_runs(tmp_path, monkeypatch, failure):
    asked = []

    def execute_notebook(source, done, **options):
        asked.append(source)
        if len(asked) == 1:
            raise failure
        Path(done).write_text(Path(source).read_text())

    monkeypatch.setattr("papermill.execute_notebook", execute_notebook)
    paths = [write(tmp_path, name, "1") for name in ("one", "two")]
    assert not reports.build(paths, tmp_path / "out", {}, timeout=60)
    found = outcomes(tmp_path / "out")
    assert found["two"] is None
    assert found["one"].startswith(("the kernel", "the notebook cannot"))
    assert "\n" not in found["one"]
    assert found["one"] in (tmp_path / "out" / "index.html").read_text().replace("&#x27;", "'")


def shows(monkeypatch, outputs):
    """Notebooks "run" from now on by getting one output each: that of their name."""

    def execute(notebook, values, timeout):
        name = notebook.cells[0].source.removeprefix("# About <").removesuffix(">")
        if name in outputs:
            output = {"output_type": "display_data", "metadata": {}, "data": outputs[name]}
            notebook.cells[1].outputs = [nbformat.from_dict(output)]
        return notebook, None

    monkeypatch.setattr(build, "execute", execute)


def test_an_output_of_an_unknown_form_fails_its_own_notebook_only(tmp_path, monkeypatch):
    plotly = "application/vnd.plotly.v1+json"
    odd = {
        "number": {MIME: {"x": 1}},
        "figure": {plotly: {"x": 1}},
        "list": {plotly: [1]},
        "height": {plotly: {"data": [{"y": [1]}], "layout": {"height": "x"}}},
    }
    whole = {"half": {"text/html": "a\ud800b"}}
    shows(monkeypatch, {**odd, **whole})
    paths = [write(tmp_path, name, "1") for name in [*odd, *whole, "good"]]
    assert not reports.build(paths, tmp_path / "out", {}, timeout=60)
    found = outcomes(tmp_path / "out")
    assert {name for name, error in found.items() if error} == set(odd)
    assert all(found[name].startswith("an output cannot be shown") for name in odd)
    assert "a\ufffdb" in (tmp_path / "out" / "half.html").read_text()
    assert "an output cannot be shown" in (tmp_path / "out" / "figure.html").read_text()


@pytest.mark.parametrize("formula", [r"\frac{", r"\left( x", "}", "a_b_c", r"\begin{x}"])
def test_a_formula_that_is_none_is_shown_as_it_stands(formula):
    page = build.page.notebook_page(new_notebook(cells=[new_markdown_cell(f"See ${formula}$.")]), "t", "p.js")
    assert formula in page or "<math" in page


class Links(HTMLParser):
    """Every `href` and `src` of a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("href", "src") and not value.startswith("data:")]


def test_every_link_of_the_index_leads_to_its_page_whatever_a_notebook_is_called(tmp_path, monkeypatch):
    shows(monkeypatch, {})
    names = ["run #1", "50% off", "a%20b", "what?", "it's", 'so "called"', "modèle é", "<b>&amp;", "a b;c=d", "index"]
    paths = [write(tmp_path, name, "1") for name in names]
    paths.append(write(tmp_path, "caf\udce9", "1"))
    assert reports.build(paths, tmp_path / "out", {}, timeout=60)
    index = (tmp_path / "out" / "index.html").read_text()
    links = Links(index).found
    pages = [unquote(urlsplit(link).path) for link in links]
    assert all((tmp_path / "out" / name).is_file() for name in pages)
    assert len(set(pages)) == len(names) + 2  # and results.json
    assert not any(urlsplit(link).query or urlsplit(link).fragment for link in links)
    assert "<b>&amp;" not in index.replace("&lt;", "").partition("<main>")[2]
