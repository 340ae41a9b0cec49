"""Notebooks without Jupyter: run them one after another, and make pages that need nothing from outside.

    build([], Path("reports"), {"layer": 28}, timeout=600)

runs every notebook of the lab, each in a fresh kernel (papermill). It writes one HTML page a notebook, an `index.html`
with the key numbers and a `results.json`. A notebook that fails still gets its page, up to the failing cell, and the
other notebooks still run.

## Choice

The pages are our own and not those of nbconvert, whose template loads scripts from four outside addresses. Here figures
are drawn from their JSON by the one `plotly.min.js` beside the pages, and formulas become MathML.

A notebook puts a number on the index page with `result("mean acceptance length", 2.3, "tokens per round")`.
"""

from quasar_lab.reports.build import build, find_notebooks, notebook_folder
from quasar_lab.reports.results import KeyNumber, result

Result = KeyNumber
"""The name that version 0.1 had for it."""

__all__ = ["KeyNumber", "build", "find_notebooks", "notebook_folder", "result"]
