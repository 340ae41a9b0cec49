"""Writes the install cell into every notebook: the cell that installs the lab where it is missing, as on Colab.

    .venv/bin/python tests/notebooks/install_cells.py

The text of the cell is `jupyter.install_cell()`. Run this after a change of that function; a test compares the
notebooks with that text. The cell is folded and stands behind the parameters. No other cell is changed.
"""

import sys

import nbformat

from quasar_lab import reports
from quasar_lab.cli import jupyter

METADATA = {"jupyter": {"source_hidden": True}, "tags": ["install"]}


def place(notebook: nbformat.NotebookNode) -> None:
    """Puts the install cell right behind the parameters, and removes an older one."""
    notebook.cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", [])]
    behind = next(n for n, cell in enumerate(notebook.cells, 1) if "parameters" in cell.metadata.get("tags", []))
    cell = nbformat.v4.new_code_cell(jupyter.install_cell(), metadata=METADATA)
    cell["id"] = "install"
    notebook.cells.insert(behind, cell)


for path in reports.find_notebooks(sys.argv[1:]):
    document = nbformat.read(path, as_version=4)
    place(document)
    nbformat.write(document, path)
