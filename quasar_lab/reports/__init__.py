"""Notebooks without Jupyter: run them one after another, and make pages that need nothing from outside.

    build([], Path("reports"), {"layer": 28}, timeout=600)

runs every notebook of the lab (papermill, a fresh kernel each), writes one HTML page a notebook, an `index.html` with
the key numbers and a `results.json`. Pages are our own and not nbconvert's, whose template asks four outside addresses
for scripts: figures are drawn from their JSON by the one `plotly.min.js` beside the pages, formulas become MathML. A
notebook that fails still gets its page, up to the failing cell, and the others are built.

A notebook puts a number on the index page with `result("mean acceptance length", 2.3, "tokens per round")`.
"""

from quasar_lab.reports.build import build, find_notebooks, notebook_folder
from quasar_lab.reports.results import Result, result

__all__ = ["Result", "build", "find_notebooks", "notebook_folder", "result"]
