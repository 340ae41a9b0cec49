"""Which notebooks of a report need not run again, because nothing that their page depends on has changed.

## Idea

A page depends on the notebook's text, its parameters, the lab's own source, the versions of what it uses, and the
machine. All of them together make one fingerprint, which `results.json` keeps. A notebook with the same fingerprint is
not run again, so a report that was interrupted goes on where it stopped, and a change to one notebook runs only that
notebook. Random draws and times on a page that is kept stay as they were.

## What is lost

A file or a hub model that a parameter names counts by its name only. `--fresh` runs everything.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import quasar_kernels
from nbformat import NotebookNode

import quasar_lab
from quasar_lab.reports.summary import NotebookSummary
from quasar_lab.support import storage
from quasar_lab.support.errors import InputError
from quasar_lab.support.machine import cpu_name, versions

SOURCES = {".py", ".js", ".css", ".jsonl", ".so"}
"""Endings of the files that may change what a notebook shows."""


@cache
def source_hash() -> str:
    """Hash of every file of the package, the kernels and the prompts that may change what a notebook shows."""
    folders = [Path(quasar_lab.__file__).parent, Path(quasar_kernels.__file__).parent, storage.packaged_folder("data")]
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in SOURCES and path.is_file()):
            total.update(f"{path.relative_to(folder)}\0{storage.sha256_file(path)}\0".encode())
    return total.hexdigest()


def fingerprint(notebook: NotebookNode, parameters: Mapping[str, Any]) -> str:
    """Everything that a page depends on, as one word."""
    from plotly import __version__ as plotly

    cells = [[cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))] for cell in notebook.cells]
    parts = [cells, dict(parameters), source_hash(), versions(), plotly, cpu_name()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def earlier(out: Path) -> dict[str, NotebookSummary]:
    """Fingerprint → the notebooks that ran well for the report in `out` and still have their pages. Empty when there is
    no report, or one that this version does not understand."""
    try:
        entries = json.loads((out / "results.json").read_text(encoding="utf-8"))["notebooks"]
        summaries = [NotebookSummary.from_json(entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return {}
    return {each.fingerprint: each for each in summaries if each.status == "ok" and (out / each.page).is_file()}
