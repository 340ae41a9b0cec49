"""An executed notebook as one HTML page of our own, and the index page of a report.

Prose is Markdown, with formulas as MathML. Code is folded. Figures stay interactive: `page.js` draws them from the JSON
in the page. An output is shown in the richest of its forms that loads nothing from outside. A page is dark where the
reader's system is, and what is wider than a phone scrolls in its own place.
"""

import html
import json
import re
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from latex2mathml import exceptions
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from quasar_lab.figures.plot import CONFIG, theme_bundle, theme_sheet
from quasar_lab.figures.plot import MIME as PLOTLY
from quasar_lab.figures.strip import embedded_json
from quasar_lab.reports.data_tables import data_table, describe
from quasar_lab.reports.results import MIME, KeyNumber
from quasar_lab.reports.summary import Summary
from quasar_lab.support.result import Json

WIDGET = "application/vnd.jupyter.widget-view+json"
SKIPPED_TAGS = {"papermill-error-cell-tag", "install"}
WIDE = '<div class="wide" tabindex="0">'
"""Around what may be wider than a phone."""
COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

UNKNOWN_FORMULA: tuple[type[Exception], ...] = (
    IndexError,
    *(kind for kind in vars(exceptions).values() if isinstance(kind, type)),
)
"""What latex2mathml raises on a formula that it does not understand: its errors have no common base."""


@cache
def _markdown() -> MarkdownIt:
    def formula(text: str, options: Json) -> str:
        try:
            shown = convert(text, display="block" if options["display_mode"] else "inline")
        except UNKNOWN_FORMULA:
            return f"<code>{html.escape(text)}</code>"
        return f"{WIDE}{shown}</div>" if options["display_mode"] else shown

    markdown = MarkdownIt("commonmark", {"html": True}).enable("table").use(dollarmath_plugin, renderer=formula)
    markdown.add_render_rule("table_open", lambda *_: f"{WIDE}<table>")
    markdown.add_render_rule("table_close", lambda *_: "</table></div>")
    return markdown


def _asset(name: str) -> str:
    return (files("quasar_lab.reports") / name).read_text(encoding="utf-8")


def _script() -> str:
    return f"const CONFIG = {json.dumps({**CONFIG, 'responsive': True})};\n{_asset('page.js')}"


@cache
def _style() -> str:
    """The style sheet of every page, and what is other in the dark."""
    code = HtmlFormatter(style="tango").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code") + "\n.code { background: var(--shade) }"
    return f"{_asset('page.css')}\n{code}\n@media (prefers-color-scheme: dark) {{\n{dark}\n{theme_sheet(':root')}}}"


def title_of(notebook: NotebookNode, otherwise: str) -> str:
    """The first heading of a notebook."""
    for cell in notebook.cells:
        match = re.search(r"^# +(.+)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        if match:
            return match[1].strip()
    return otherwise


def results(notebook: NotebookNode) -> list[KeyNumber]:
    """The key numbers that the notebook displayed, in order."""
    return [
        KeyNumber.from_json(output["data"][MIME])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if MIME in output.get("data", {})
    ]


def notebook_page(notebook: NotebookNode, title: str, script: str, error: str | None = None) -> str:
    """The page of an executed notebook. script: address of plotly's own script, beside the page. error: why the
    notebook stopped."""
    body = []
    if error is not None:
        body.append(
            f'<p class="failed"><strong>This notebook stopped.</strong> {html.escape(error)}<br>'
            "What ran before is shown below.</p>"
        )
    for cell in _shown_cells(notebook):
        if cell.cell_type == "markdown":
            body.append(f'<section class="prose">{_prose(cell.source)}</section>')
        elif cell.cell_type == "code" and cell.source.strip():
            body.append(_code(cell))
            if any(output.output_type == "error" for output in cell.outputs):
                break
    content = "\n".join(body)
    figures = 'class="figure"' in content
    scripts = f'<script src="{script}"></script>\n<script>{_script()}</script>' if figures else ""
    return _document(title, f'<nav><a href="index.html">← all notebooks</a></nav>\n{content}\n{scripts}')


def _shown_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that a reader is to see. papermill puts what was given into a cell behind the defaults; here both are
    one cell."""
    tagged = {tag: cell for cell in notebook.cells for tag in _tags(cell)}
    defaults = tagged.get("parameters") if "injected-parameters" in tagged else None
    shown = []
    for cell in notebook.cells:
        if SKIPPED_TAGS & _tags(cell) or cell is defaults:
            continue
        if defaults is not None and "injected-parameters" in _tags(cell):
            given = cell.source.removeprefix("# Parameters\n")
            cell = NotebookNode({**cell, "source": f"{defaults.source}\n\n# given for this run\n{given}"})
        shown.append(cell)
    return shown


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


def index_page(summary: Summary) -> str:
    """Links to the pages, with their key numbers, and when and where they were measured."""
    cards = []
    for notebook in summary.notebooks:
        numbers = "".join(f"<li>{_number(number)}</li>" for number in notebook.results)
        state = "" if notebook.error is None else f'<p class="failed">stopped: {html.escape(notebook.error)}</p>'
        cards.append(
            f'<section class="card"><h2><a href="{quote(notebook.page)}">{html.escape(notebook.title)}</a></h2>'
            f'{state}<ul class="numbers">{numbers}</ul>'
            f'<p class="small">ran in {notebook.seconds:.0f} s, {_when(notebook.ran)}</p></section>'
        )
    about = summary.about
    made = [_when(about.created), about.machine]
    made += [f"{about.backend} backend", *(f"model {name}" for name in about.models)]
    made += [f"{name} {version}" for name, version in about.versions.items()]
    introduction = "<h1>Report</h1><p>Each page is a notebook of the lab, run from top to bottom without a person.</p>"
    introduction += f'<p class="small">{html.escape(" · ".join(made))}</p>'
    links = '<p class="small">The same numbers for programs: <a href="results.json">results.json</a></p>'
    return _document("quasar_lab report", f"{introduction}\n{''.join(cards)}\n{links}")


def _when(iso: str) -> str:
    return html.escape(iso.replace("T", " ").replace("+00:00", " UTC"))


def _document(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<style>{_style()}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _prose(source: str) -> str:
    """Markdown → HTML; links to other notebooks lead to their pages."""
    return re.sub(r'(href="[^":]+)\.ipynb(["#])', r"\1.html\2", _markdown().render(source))


def _code(cell: NotebookNode) -> str:
    source = highlight(cell.source, PythonLexer(), HtmlFormatter(cssclass="code", wrapcode=True))
    label = "parameters" if "parameters" in _tags(cell) else "code"
    if "injected-parameters" in _tags(cell):
        label = "parameters of this run"
    shown = "".join(_output(output) for output in cell.outputs)
    return f"<details class='source'><summary>{label}</summary>{source}</details>\n{shown}"


def _output(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return _text(output.text, "stream")
    if output.output_type == "error":
        return _text("\n".join(output.traceback) or f"{output.ename}: {output.evalue}", "error")
    data = output.data
    if data.get("text/html") == theme_bundle()["text/html"]:
        return ""  # the page brings its own
    if MIME in data:
        return f'<p class="result">{_number(KeyNumber.from_json(data[MIME]))}</p>'
    if PLOTLY in data:
        return _figure(data[PLOTLY])
    if WIDGET in data:
        return '<p class="small">a live widget, which a page cannot show</p>'
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    if "text/markdown" in data:
        return f'<section class="prose">{_prose(data["text/markdown"])}</section>'
    if "image/png" in data:
        return f'<img class="output" alt="" src="data:image/png;base64,{"".join(data["image/png"].split())}">'
    return _text(data.get("text/plain", ""), "stream")


def _text(text: str, kind: str) -> str:
    return f'<pre class="output {kind}">{html.escape(COLOUR_CODES.sub("", text)).rstrip()}</pre>' if text else ""


def _number(item: KeyNumber) -> str:
    unit = f" {html.escape(item.unit)}" if item.unit else ""
    return f"<b>{html.escape(item.shown)}</b>{unit}<br><span>{html.escape(item.name)}</span>"


def _figure(figure: Json) -> str:
    """The place where `page.js` draws one figure. Beside it stand a sentence about the figure and its numbers, for
    readers who cannot see it."""
    layout = figure.get("layout", {})
    drawn = {"data": figure["data"], "layout": layout, "frames": figure.get("frames") or []}
    height = int(layout.get("height", 420))
    return (
        f'<figure><div class="figure" role="group" aria-label="{html.escape(describe(figure))}" '
        f'style="min-height:{height}px"><script type="application/json">{embedded_json(drawn)}</script></div>'
        f"{data_table(figure)}</figure>"
    )
