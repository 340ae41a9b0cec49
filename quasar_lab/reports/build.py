"""Runs notebooks one after another and writes the report folder. Each file is written completely or not at all."""

import json
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from quasar_kernels import select

from quasar_lab.figures.strip import whole_characters
from quasar_lab.reports import page, parameters, resume
from quasar_lab.reports.execution import execute
from quasar_lab.reports.results import KeyNumber
from quasar_lab.reports.summary import About, NotebookSummary, Summary
from quasar_lab.support import storage
from quasar_lab.support.errors import InputError, QuasarError, StorageError
from quasar_lab.support.machine import cpu_name, versions
from quasar_lab.support.progress import announce

SCRIPT = "plotly.min.js"

UNREADABLE = (
    OSError,
    ValueError,
    AttributeError,
    TypeError,
    KeyError,
    IndexError,
    RecursionError,
    nbformat.ValidationError,
)
"""What nbformat raises on a document that is no notebook: it reads parts of it before it checks it."""

UNSHOWN = (AttributeError, IndexError, KeyError, TypeError, ValueError, QuasarError)
"""What an output that is not of the form which its type promises makes of our page."""


@dataclass
class Run:
    """One notebook of the report."""

    name: str
    title: str
    """Its first heading."""
    notebook: NotebookNode
    """With outputs once it ran."""
    parameters: Mapping[str, Any]
    """What it is given beside its own defaults."""
    model: str | None = None
    """What its parameter `model_id` says."""
    fingerprint: str = ""
    """Of everything that its page depends on."""
    seconds: float = 0.0
    error: str | None = None
    """Why it stopped. None when every cell ran."""
    results: Sequence[KeyNumber] = ()
    """The key numbers that it displayed."""
    ran: str = ""
    """When it ran; empty before."""
    skipped: bool = False
    """Whether its page of an earlier run still holds."""

    @property
    def file(self) -> str:
        """Name of its page. `index.html` is the report's own."""
        return f"{self.name}{'-notebook' if self.name.lower() == 'index' else ''}.html"

    def take_over(self, earlier: NotebookSummary | None) -> None:
        """Fills in what an earlier run of the same fingerprint found; does nothing without one."""
        if earlier is not None:
            self.results = earlier.results
            self.seconds = earlier.seconds
            self.ran = earlier.ran
            self.skipped = True

    def summary(self) -> NotebookSummary:
        """Its entry in `results.json`."""
        return NotebookSummary(
            name=self.name,
            title=self.title,
            page=self.file,
            status="ok" if self.error is None else "failed",
            error=self.error,
            seconds=round(self.seconds, 2),
            ran=self.ran,
            fingerprint=self.fingerprint,
            parameters=dict(self.parameters),
            results=list(self.results),
        )


def notebook_folder() -> Path:
    """The lab's notebooks: the checkout's own, or those that came with the wheel."""
    return storage.packaged_folder("notebooks")


def find_notebooks(names: Sequence[str | Path]) -> list[Path]:
    """The notebooks that are named: files, or names of the lab's notebooks ("01_outliers"). Without names, all of the
    lab's notebooks in order.

    Raises InputError on a name that is neither, and on two notebooks with the same name.
    """
    folder = notebook_folder()
    ours = sorted(folder.glob("*.ipynb"))
    if not names:
        return ours
    found = []
    for name in names:
        path = Path(name)
        choices = [path, folder / f"{path.name.removesuffix('.ipynb')}.ipynb"]
        match = next((choice for choice in choices if choice.suffix == ".ipynb" and choice.is_file()), None)
        if match is None:
            raise InputError(f"no notebook {str(name)!r}; accepted: a file, or {', '.join(path.stem for path in ours)}")
        found.append(match)
    stems = [path.stem for path in found]
    if len(set(stems)) < len(stems):
        raise InputError("two notebooks have the same name; accepted: each name once, it becomes the page's name")
    return found


def build(
    notebooks: Sequence[str | Path], out: Path, parameters: Mapping[str, Any], timeout: int, fresh: bool = False
) -> bool:
    """Runs `notebooks` (none: all) and writes the report into `out`. False when one of them failed.

    parameters: for every notebook that has one of that name. `interactive` is off unless it is given. timeout: seconds
    that one notebook may take. fresh: run also notebooks whose page in `out` is up to date. Raises InputError, before
    anything runs, on an unknown notebook or parameter, or a value of a wrong type.
    """
    runs = _plan(find_notebooks(notebooks), parameters)
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{out} cannot be a report's folder: {error}") from error
    _write_script(out / SCRIPT)
    known = {} if fresh else resume.earlier(out)
    for run in runs:
        run.take_over(known.get(run.fingerprint))
    for place, run in enumerate(runs, 1):
        where = f"[{place}/{len(runs)}] {run.name}"
        if run.skipped:
            announce(f"{where}: up to date, skipped (ran {run.ran})")
            continue
        announce(f"{where} …")
        _run(run, out, timeout)
        announce(f"{where}: {run.error or 'done'}, {run.seconds:.0f} s")
        # After each, so that a report that is interrupted can go on and shows what there is.
        _write_summary([run for run in runs if run.ran], out)
    _write_summary(runs, out)
    return all(run.error is None for run in runs)


def _run(run: Run, out: Path, timeout: int) -> None:
    """Runs one notebook and writes its page."""
    started = time.monotonic()
    run.notebook, run.error = execute(run.notebook, run.parameters, timeout)
    run.seconds = time.monotonic() - started
    run.ran = _now()
    try:
        run.results = page.results(run.notebook)
        text = page.notebook_page(run.notebook, run.title, SCRIPT, run.error)
    except UNSHOWN as error:
        run.error = run.error or f"an output cannot be shown ({type(error).__name__}: {error})"
        text = page.notebook_page(_without_outputs(run.notebook), run.title, SCRIPT, run.error)
    storage.write_text(out / run.file, whole_characters(text))


def _without_outputs(notebook: NotebookNode) -> NotebookNode:
    bare = deepcopy(notebook)
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    return bare


def _write_summary(runs: Sequence[Run], out: Path) -> None:
    summary = Summary(about=_about(runs), notebooks=[run.summary() for run in runs])
    storage.write_text(out / "results.json", json.dumps(summary.to_json(), indent=1, ensure_ascii=False) + "\n")
    storage.write_text(out / "index.html", page.index_page(summary))


def _plan(paths: Sequence[Path], given: Mapping[str, Any]) -> list[Run]:
    """The runs of a report, each with the parameters it gets. Raises InputError as `build` says."""
    sources: dict[str, NotebookNode] = {}
    for path in paths:
        try:
            # Half a character in a file's name has no place in a page: U+FFFD stands for it.
            sources[whole_characters(path.stem)] = nbformat.read(path, as_version=4)
        except UNREADABLE as error:
            raise InputError(f"{path} cannot be read as a notebook; accepted: .ipynb files") from error
    own = {name: parameters.defaults(notebook, name) for name, notebook in sources.items()}
    chosen = parameters.fit(given, own)
    runs = []
    for name, notebook in sources.items():
        headless = {"interactive": False} if "interactive" in own[name] else {}
        values = {**headless, **chosen[name]}
        model = {**own[name], **values}.get("model_id")
        fingerprint = resume.fingerprint(notebook, values)
        runs.append(Run(name, page.title_of(notebook, name), notebook, values, model, fingerprint))
    return runs


def _write_script(path: Path) -> None:
    from plotly.offline import get_plotlyjs

    storage.write_text(path, get_plotlyjs())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _about(runs: Sequence[Run]) -> About:
    return About(
        created=_now(),
        machine=cpu_name(),
        backend=select("auto", "cpu").name,
        models=list(dict.fromkeys(run.model for run in runs if run.model)),
        versions=versions(),
    )
