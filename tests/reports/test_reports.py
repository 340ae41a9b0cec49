"""Reports: what runs, what is refused before anything runs, what a failure leaves behind, and what a page holds."""

import importlib
import io
import json
import re
import sys
from html.parser import HTMLParser

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from quasar_lab import reports
from quasar_lab.reports import parameters, resume
from quasar_lab.reports.page import notebook_page, results, title_of
from quasar_lab.reports.results import MIME, KeyNumber
from quasar_lab.support import progress
from quasar_lab.support.errors import InputError

build = importlib.import_module("quasar_lab.reports.build")  # the package's name for it is the function
PARAMETERS = 'layer = 3\nalpha = 0.5\nname = "ada"\nwidths = [1, 2]\ninteractive = True'


def write(folder, name, *cells):
    """A notebook with a heading, the parameters above, and `cells`."""
    first = new_code_cell(PARAMETERS)
    first.metadata["tags"] = ["parameters"]
    notebook = new_notebook(cells=[new_markdown_cell(f"# About {name}"), first, *cells])
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


GOOD = """from quasar_lab import reports
import plotly.graph_objects as go
import os
print("headless", os.environ["QUASAR_HEADLESS"], "interactive", interactive, "<b>not bold</b>")
title = {"text": "Two points", "subtitle": {"text": "seen <b>from</b> here"}}
display(go.Figure(go.Scatter(y=[layer, layer], name="</script>"), {"title": title}))
reports.result("twice the layer", 2 * layer, "units")"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A report of one good and one failing notebook, with layer = 4: (folder, whether all went well)."""
    folder = tmp_path_factory.mktemp("reports")
    good = write(folder, "good", new_markdown_cell("Formula $x^2$, [next](bad.ipynb#there)."), new_code_cell(GOOD))
    nameless = nbformat.read(good, as_version=4)
    del nameless.metadata["kernelspec"]  # as some editors leave it: neither kernel nor language
    nbformat.write(nameless, good)
    bad = write(
        folder,
        "bad",
        new_code_cell("print('before')"),
        new_code_cell("raise ValueError('on purpose')"),
        new_code_cell("print('after')"),
    )
    foreign = nbformat.read(bad, as_version=4)
    foreign.metadata["kernelspec"] = {"display_name": "Mine", "language": "python", "name": "no-such-kernel"}
    foreign.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {}}  # no "state": stops nbconvert
    nbformat.write(foreign, bad)
    before = good.read_bytes(), bad.read_bytes()
    well = reports.build([bad, good], folder / "out", {"layer": "4"}, timeout=60)
    assert (good.read_bytes(), bad.read_bytes()) == before
    return folder / "out", well


@pytest.mark.slow
def test_a_failed_notebook_keeps_its_page_and_stops_no_other(built):
    out, well = built
    assert not well
    page = (out / "bad.html").read_text()
    assert "ValueError: on purpose" in page
    assert "before" in page
    assert "after" not in page.replace("before", "")
    summary = json.loads((out / "results.json").read_text())["notebooks"]
    assert [(run["name"], run["status"], run["error"]) for run in summary] == [
        ("bad", "failed", "ValueError: on purpose"),
        ("good", "ok", None),
    ]
    assert {"created", "machine", "backend", "models", "versions"} <= set(
        json.loads((out / "results.json").read_text())
    )
    assert summary[1]["parameters"] == {"interactive": False, "layer": 4}
    assert summary[1]["results"] == [{"name": "twice the layer", "value": 8, "unit": "units"}]
    index = (out / "index.html").read_text()
    assert 'href="good.html"' in index
    assert "twice the layer" in index
    assert "ValueError: on purpose" in index
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC · .* backend · .*torch ", index)
    assert re.search(r"ran in \d+ s", index)
    assert sorted(path.name for path in out.iterdir()) == [
        "bad.html",
        "good.html",
        "index.html",
        "plotly.min.js",
        "results.json",
    ]


@pytest.mark.slow
def test_a_page_draws_figures_and_asks_nothing_from_outside(built):
    page = (built[0] / "good.html").read_text()
    assert "headless 1 interactive False &lt;b&gt;not bold&lt;/b&gt;" in page
    assert "<math" in page
    assert 'href="bad.html#there"' in page
    assert 'aria-label="Two points — seen from here"' in page
    assert re.search(r"<details class=\"data\">.*<td>4</td>", page)
    assert len(page) < 4_000_000
    assert sources(page) == ["plotly.min.js"]
    assert not re.search("require(js|[.]min)", page, re.IGNORECASE)  # plotly would hand itself to it, and draw nothing
    (figure,) = re.findall(r'<script type="application/json">(.*?)</script>', page)
    figure = json.loads(figure)
    assert (figure["data"][0]["name"], figure["data"][0]["y"], figure["frames"]) == ("</script>", [4, 4], [])


def ran(monkeypatch, fails=()):
    """Names of the notebooks that are run from now on, without a kernel; each gives one result."""
    names = []

    def execute(notebook, values, timeout):
        names.append(title_of(notebook, "").removeprefix("About "))
        cell = new_code_cell("pass")
        value = {"name": "runs", "value": len(names), "unit": ""}
        cell.outputs = [nbformat.from_dict({"output_type": "display_data", "metadata": {}, "data": {MIME: value}})]
        return new_notebook(cells=[*notebook.cells, cell]), "no luck" if names[-1] in fails else None

    monkeypatch.setattr(build, "execute", execute)
    return names


def test_what_is_up_to_date_is_skipped_and_still_reported(tmp_path, monkeypatch, capsys):
    paths, out = [write(tmp_path, name) for name in ("one", "two")], tmp_path / "out"
    names = ran(monkeypatch)
    assert reports.build(paths, out, {}, timeout=60)
    first = json.loads((out / "results.json").read_text())["notebooks"]
    capsys.readouterr()
    assert reports.build(paths, out, {}, timeout=60)
    assert names == ["one", "two"]
    assert re.findall(r"(\w+): up to date, skipped", capsys.readouterr().err) == ["one", "two"]
    again = json.loads((out / "results.json").read_text())["notebooks"]
    assert again == first
    assert [run["results"][0]["value"] for run in again] == [1, 2]
    assert (out / "index.html").read_text().count('class="card"') == 2


@pytest.mark.parametrize("changed", ["text", "parameter", "source", "page", "fresh"])
def test_a_change_runs_the_notebook_again(tmp_path, monkeypatch, changed):
    paths, out = [write(tmp_path, name) for name in ("one", "two")], tmp_path / "out"
    names, given = ran(monkeypatch), {}
    reports.build(paths, out, {}, timeout=60)
    if changed == "text":
        write(tmp_path, "two", new_code_cell("print(layer)"))
    elif changed == "parameter":
        given = {"layer": 9}
    elif changed == "source":
        monkeypatch.setattr(resume, "source_hash", lambda: "other")
    elif changed == "page":
        (out / "two.html").unlink()
    reports.build(paths, out, given, timeout=60, fresh=changed == "fresh")
    assert names[2:] == (["two"] if changed in ("text", "page") else ["one", "two"])


def test_a_failed_notebook_runs_again_and_the_others_do_not(tmp_path, monkeypatch):
    paths, out = [write(tmp_path, name) for name in ("one", "two")], tmp_path / "out"
    names = ran(monkeypatch, fails=["one"])
    assert not reports.build(paths, out, {}, timeout=60)
    assert not reports.build(paths, out, {}, timeout=60)
    assert names == ["one", "two", "one"]


def test_a_report_cut_short_goes_on(tmp_path, monkeypatch):
    paths, out = [write(tmp_path, name) for name in ("one", "two")], tmp_path / "out"
    names = ran(monkeypatch)
    fake = build.execute

    def cut(notebook, values, timeout):
        if names:
            raise KeyboardInterrupt
        return fake(notebook, values, timeout)

    monkeypatch.setattr(build, "execute", cut)
    with pytest.raises(KeyboardInterrupt):
        reports.build(paths, out, {}, timeout=60)
    assert [run["name"] for run in json.loads((out / "results.json").read_text())["notebooks"]] == ["one"]
    monkeypatch.setattr(build, "execute", fake)
    assert reports.build(paths, out, {}, timeout=60)
    assert names == ["one", "two"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"notebooks": [{"status": "ok"}]}', '{"notebooks": {"a": 1}}'])
def test_a_damaged_summary_only_means_that_everything_runs(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    assert resume.earlier(tmp_path) == {}


def sources(page):
    """Every address that a browser would fetch for this page."""

    class Fetched(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.extend(v for k, v in attrs if k in ("src", "srcset") or (tag == "link" and k == "href"))

    found = []
    Fetched().feed(page)
    assert "@import" not in page
    assert "url(" not in page
    return [address for address in found if not address.startswith("data:")]


@pytest.mark.slow
def test_a_notebook_that_takes_too_long_is_a_failed_one(tmp_path):
    slow = write(tmp_path, "slow", new_code_cell("import time\ntime.sleep(300)"))
    assert not reports.build([slow], tmp_path / "out", {}, timeout=5)
    assert "took longer than 5 s" in (tmp_path / "out" / "slow.html").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lager": 1}, "unknown parameter 'lager'; accepted: alpha, interactive, layer, name, widths"),
        ({"layer": "three"}, "parameter 'layer' is 'three'; accepted: a whole number"),
        ({"layer": 1.5}, "accepted: a whole number"),
        ({"layer": True}, "accepted: a whole number"),
        ({"alpha": "x"}, "accepted: a number"),
        ({"interactive": "perhaps"}, "accepted: true or false"),
        ({"interactive": 1}, "accepted: true or false"),
        ({"name": 3}, "accepted: a text"),
        ({"widths": "one"}, "accepted: a list of values like 1, e.g. 1,2"),
        ({"widths": ["a"]}, "accepted: a list"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(tmp_path, given, said):
    path = write(tmp_path, "some")
    with pytest.raises(InputError, match=re.escape(said)):
        reports.build([path], tmp_path / "out", given, timeout=60)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("value", "default", "expected"),
    [
        ("4", 3, 4),
        ("2", 0.5, 2.0),
        (2, 0.5, 2.0),
        ("1e-3", 0.5, 1e-3),
        ("False", True, False),
        ("true", False, True),
        ("1,4,8", [1], [1, 4, 8]),
        ("[3]", [1], [3]),
        ("5", [1], [5]),
        ("42", "text", "42"),
        ("w8a8-plain", ["w8a8"], ["w8a8-plain"]),
        ("a, b", ["x"], ["a", "b"]),
        ("['a,b', 'c']", ["x"], ["a,b", "c"]),
        ("'a','b'", ["x"], ["a", "b"]),
    ],
)
def test_texts_become_the_type_of_the_default(value, default, expected):
    found = parameters.convert("name", value, default)
    assert (type(found), found) == (type(expected), expected)


def test_unknown_notebooks_name_the_known_ones(tmp_path):
    with pytest.raises(InputError, match=r"no notebook '99_none'; accepted: a file, or 00_start_here, 01_outliers"):
        reports.build(["99_none"], tmp_path / "out", {}, timeout=60)
    broken = tmp_path / "broken.ipynb"
    broken.write_text("{")
    with pytest.raises(InputError, match="cannot be read as a notebook"):
        reports.build([broken], tmp_path / "out", {}, timeout=60)


def test_names_and_files_find_notebooks(tmp_path):
    path = write(tmp_path, "own")
    found = reports.find_notebooks([str(path), "01_outliers", "02_acceptance.ipynb"])
    assert [item.stem for item in found] == ["own", "01_outliers", "02_acceptance"]
    assert [item.stem for item in reports.find_notebooks([])] == sorted(
        item.stem for item in reports.notebook_folder().glob("*.ipynb")
    )
    with pytest.raises(InputError, match="the same name"):
        reports.find_notebooks(["01_outliers", "01_outliers"])


def with_parameters(source):
    cell = new_code_cell(source)
    cell.metadata["tags"] = ["parameters"]
    return new_notebook(cells=[cell])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("path = None", {"path": None}),
        ("layer: int = 3", {"layer": 3}),
        ("alpha: float = 1", {"alpha": 1.0}),
        ("path: 'str | None' = None", {"path": None}),
        ("tokens = 10**3", {"tokens": 1000}),
        ("a = b = 2 * (3 + 4) // -5 % 4 - 1 / 2", {"a": 0.5, "b": 0.5}),
        ("widths = [1, 2**3, (4, 5 * 1e300)]", {"widths": [1, 8, (4, 5e300)]}),
        ("layer = -1; name = 'a' 'b'", {"layer": -1, "name": "ab"}),
        ('"""What to look at."""\nlayer = +3  # from 0', {"layer": 3}),
        ("found = {'a': {1, 2}, 'b': b'x'}", {"found": {"a": {1, 2}, "b": b"x"}}),
    ],
)
def test_a_parameters_cell_holds_literals_annotations_and_arithmetic(source, expected):
    found = parameters.defaults(with_parameters(source), "some")
    assert found == expected
    assert [type(value) for value in found.values()] == [type(value) for value in expected.values()]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("layer = 1 + len('a')", "`len('a')` is no literal"),
        ("layer: int", "`layer: int` assigns nothing"),
        ("import os", "`import os` assigns nothing"),
        ("a, b = 1, 2", "`a, b = (1, 2)` assigns to more than a name"),
        ("%matplotlib inline", "line 1: invalid syntax"),
        ("n = 9**9**9", "`9 ** 9 ** 9` is too large"),
        ("n = 9**99", "`9 ** 99` is too large"),
        ("n = 'a' * 10**9", "`'a'` is no number"),
        ("n = 1 / 0", "`1 / 0` has no value"),
        ("n = (-8) ** 0.5", "is no number"),
        ("n = " + "-" * 5000 + "1", "is not understood ("),
        ("n = a", "`a` is no literal"),
    ],
)
def test_anything_else_in_a_parameters_cell_is_one_line(source, said):
    with pytest.raises(InputError) as caught:
        parameters.defaults(with_parameters(source), "some")
    assert str(caught.value).startswith("the parameters cell of some is not understood (")
    assert said in str(caught.value)
    assert "accepted: lines like layer = 3, layer: int = 3 or tokens = 10**3" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("7", 7), ("0.5", 0.5), ("a text", "a text"), ("[1, 'a']", [1, "a"]), ("None", None), ("{1}", "{1}"), (3, 3)],
)
def test_a_parameter_without_a_default_takes_any_value(value, expected):
    found = parameters.convert("path", value, None)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("text", ["(" * 3000, "-" * 100_000 + "1", "{[]: 1}", "9" * 5000, "\0"])
@pytest.mark.parametrize("default", [3, [1], {"a": 1}, True])
def test_a_text_that_no_parser_takes_is_refused_in_one_line(text, default):
    with pytest.raises(InputError, match="accepted"):
        parameters.convert("layer", text, default)
    assert parameters.convert("layer", text, None) == text


def test_only_values_that_arrive_as_they_are_can_be_given():
    for value, default in ((b"x", b"y"), ({1}, {2}), (1j, None)):
        with pytest.raises(InputError, match="accepted"):
            parameters.convert("odd", value, default)


def test_results_are_numbers_texts_or_nothing():
    shown = reports.result("share", 0.123456, "of all")
    assert str(shown) == "share: 0.123 of all"
    assert shown._repr_mimebundle_()[MIME] == {"name": "share", "value": 0.123456, "unit": "of all"}
    assert [reports.result("τ", value).shown for value in (4.5, 1.0, 99.0, 1234.5)] == ["4.50", "1.00", "99.0", "1234"]
    assert str(reports.result("same", True)) == "same: yes"
    assert str(reports.result("none", None)) == "none: none"
    for value in (float("nan"), float("inf"), [1]):
        with pytest.raises(InputError, match="accepted"):
            reports.result("bad", value)


def test_outputs_of_every_kind_are_shown_and_text_stays_text():
    def output(**fields):
        return nbformat.from_dict({"output_type": "display_data", "metadata": {}, **fields})

    cell = new_code_cell("x = '<i>'")
    cell.outputs = [
        output(data={"text/plain": "<u>plain</u>"}),
        output(data={"text/html": "<em>ours</em>", "text/plain": "no"}),
        output(data={"image/png": "aGk=\n"}),
        output(data={MIME: {"name": "<n>", "value": 1, "unit": "<u>"}}),
        output(data={"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "HBox(dead)"}),
        nbformat.from_dict({"output_type": "stream", "name": "stderr", "text": "\x1b[31mred\x1b[0m & <s>"}),
    ]
    page = notebook_page(new_notebook(cells=[cell]), "<title>", "plotly.min.js")
    for piece in (
        "&lt;u&gt;plain",
        "<em>ours</em>",
        "base64,aGk=",
        "&lt;n&gt;",
        "red &amp; &lt;s&gt;",
        "&lt;title&gt;",
        "a live widget",
    ):
        assert piece in page
    assert "dead" not in page
    assert "plotly.min.js" not in page  # no figure, no script
    assert results(new_notebook(cells=[cell])) == [KeyNumber("<n>", 1, "<u>")]


def test_parameters_are_shown_once_with_what_was_given():
    defaults, given = new_code_cell("layer = 3"), new_code_cell("# Parameters\nlayer = 4\n")
    defaults.metadata["tags"], given.metadata["tags"] = ["parameters"], ["injected-parameters"]
    page = notebook_page(new_notebook(cells=[defaults, given]), "t", "plotly.min.js")
    text = re.sub(r"<[^>]+>", "", page)
    assert re.findall(r"<summary>(.*?)</summary>", page) == ["parameters of this run"]
    assert re.search(r"layer = 3\s+# given for this run\s+layer = 4", text)
    assert re.findall(r"<summary>(.*?)</summary>", notebook_page(new_notebook(cells=[defaults]), "t", "")) == [
        "parameters"
    ]


def test_progress_in_a_notebook_is_no_error(capsys, monkeypatch):
    progress.announce("on stderr")
    assert capsys.readouterr() == ("", "on stderr\n")
    cell = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stdout", cell)
    progress.announce("in the cell")
    assert cell.getvalue() == "in the cell\n"
    assert capsys.readouterr().err == ""
