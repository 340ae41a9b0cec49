"""Writes the cell that installs the lab on Colab and its like into every notebook: `jupyter.install_cell()`, one text.

    .venv/bin/python tests/notebooks/install_cells.py

Run it after a change of `jupyter.REPOSITORY`; a test compares the notebooks with it. The cell stands behind the
parameters, folded, and is the only one that changes.
"""

import sys

import nbformat

from quasar_lab import reports
from quasar_lab.cli import jupyter

METADATA = {"jupyter": {"source_hidden": True}, "tags": ["install"]}


def place(notebook: nbformat.NotebookNode) -> None:
    """Puts the cell right behind the parameters, in place of an older one."""
    notebook.cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", [])]
    behind = next(n for n, cell in enumerate(notebook.cells, 1) if "parameters" in cell.metadata.get("tags", []))
    cell = nbformat.v4.new_code_cell(jupyter.install_cell(), metadata=METADATA)
    cell["id"] = "install"
    notebook.cells.insert(behind, cell)


for path in reports.find_notebooks(sys.argv[1:]):
    document = nbformat.read(path, as_version=4)
    place(document)
    nbformat.write(document, path)
