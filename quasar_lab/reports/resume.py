"""Which notebooks of a report need not run again, because nothing that their page depends on has changed.

A page depends on the notebook's text, its parameters, the lab's own source, the versions under it and the machine: all
of them make one fingerprint, which `results.json` keeps. What is random or timed stays what it was, which is the point:
a report cut short goes on where it stopped, and a change to one notebook runs that one alone.

What is lost: a file or a hub model that a parameter names is known by its name only; `--fresh` runs everything.
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
from quasar_lab.support import storage
from quasar_lab.support.machine import cpu_name, versions

KEPT = {"results", "seconds", "ran"}
"""What is taken over from an entry of `results.json`."""

SOURCES = {".py", ".js", ".css", ".jsonl", ".so"}


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
    """What a page depends on, as one word."""
    cells = [[cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))] for cell in notebook.cells]
    from plotly import __version__ as plotly

    parts = [cells, dict(parameters), source_hash(), versions(), plotly, cpu_name()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def earlier(out: Path) -> dict[str, dict[str, Any]]:
    """Fingerprint → entry of the notebooks that ran well for the report in `out` and still have their pages."""
    try:
        entries = json.loads((out / "results.json").read_text(encoding="utf-8"))["notebooks"]
        return {
            entry["fingerprint"]: entry
            for entry in entries
            if entry["status"] == "ok" and set(entry) >= KEPT and (out / entry["page"]).is_file()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # no report, or one of another version: everything runs
