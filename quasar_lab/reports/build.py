"""Runs notebooks serially and writes the report folder, each file all or nothing."""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from quasar_kernels import select

from quasar_lab.reports import page, parameters, resume
from quasar_lab.support import storage
from quasar_lab.support.errors import InputError, StorageError
from quasar_lab.support.machine import cpu_name, versions
from quasar_lab.support.progress import announce

KERNEL = "python3"
SCRIPT = "plotly.min.js"
STAGING = {
    "PLOTLY_RENDERER": "plotly_mimetype",
    "QUASAR_HEADLESS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}
"""Environment of the kernels: figures as their JSON, static figures instead of widgets, no bars that would be dead
widgets on a page."""

QUIET = ["--IPKernelApp.log_level=ERROR"]
"""Arguments of the kernels: on this machine alone, their warning that its sockets are not encrypted is no news."""


@dataclass
class Run:
    """One notebook of the report. error: None when every cell ran. skipped: its page of an earlier run still holds."""

    name: str
    title: str
    notebook: NotebookNode
    parameters: dict[str, Any]
    model: str | None = None
    seconds: float = 0.0
    error: str | None = None
    results: list[dict[str, Any]] = field(default_factory=list)
    fingerprint: str = ""
    ran: str = ""
    skipped: bool = False

    @property
    def file(self) -> str:
        return f"{self.name}.html"


def notebook_folder() -> Path:
    """The lab's notebooks: the checkout's own, or those that came with the wheel."""
    return storage.packaged_folder("notebooks")


def find_notebooks(names: Sequence[str | Path]) -> list[Path]:
    """Files, or names of the lab's notebooks ("01_outliers"); none: all of them, in order. Raises InputError."""
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
    """Runs `notebooks` (none: all) and writes the report into `out`; False when one of them failed.

    parameters: for every notebook that has one of that name; `interactive` is off unless given. timeout: seconds that
    one notebook may take. A notebook whose page in `out` is up to date is skipped, unless `fresh`. Raises InputError,
    before anything runs, on an unknown notebook or parameter, or a wrong type.
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
        _take_over(run, known.get(run.fingerprint))
    for place, run in enumerate(runs, 1):
        where = f"[{place}/{len(runs)}] {run.name}"
        if run.skipped:
            announce(f"{where}: up to date, skipped (ran {run.ran})")
            continue
        announce(f"{where} …")
        started = time.monotonic()
        run.notebook, run.error = execute(run.notebook, run.parameters, timeout)
        run.seconds, run.ran = time.monotonic() - started, _now()
        run.results = page.results(run.notebook)
        storage.write_text(out / run.file, page.notebook_page(run.notebook, run.title, SCRIPT, run.error))
        announce(f"{where}: {run.error or 'done'}, {run.seconds:.0f} s")
        # After each, so that a report cut short can go on and shows what there is.
        _write_summary([run for run in runs if run.ran], out)
    _write_summary(runs, out)
    return all(run.error is None for run in runs)


def _take_over(run: Run, entry: Mapping[str, Any] | None) -> None:
    """Fills a run with what an earlier one of the same fingerprint found."""
    if entry is not None:
        run.results, run.seconds, run.ran, run.skipped = entry["results"], entry["seconds"], entry["ran"], True


def _write_summary(runs: Sequence[Run], out: Path) -> None:
    about = _about(runs)
    storage.write_text(out / "results.json", json.dumps(_summary(runs, about), indent=1, ensure_ascii=False) + "\n")
    storage.write_text(out / "index.html", page.index_page(runs, about))


def _plan(paths: Sequence[Path], given: Mapping[str, Any]) -> list[Run]:
    sources: dict[str, NotebookNode] = {}
    for path in paths:
        try:
            sources[path.stem] = nbformat.read(path, as_version=4)
            # nbformat looks into a document before it checks it, so one of another kind ends as any of these.
        except (OSError, ValueError, AttributeError, TypeError, KeyError, nbformat.ValidationError) as error:
            raise InputError(f"{path} cannot be read as a notebook; accepted: .ipynb files") from error
    own = {name: parameters.defaults(notebook, name) for name, notebook in sources.items()}
    chosen = parameters.fit(given, own)
    runs = []
    for name, notebook in sources.items():
        headless = {"interactive": False} if "interactive" in own[name] else {}
        values = {**headless, **chosen[name]}
        model = {**own[name], **values}.get("model_id")
        run = Run(name, page.title_of(notebook, name), notebook, values, model)
        run.fingerprint = resume.fingerprint(notebook, values)
        runs.append(run)
    return runs


def execute(notebook: NotebookNode, values: Mapping[str, Any], timeout: int) -> tuple[NotebookNode, str | None]:
    """Runs a copy of `notebook` with papermill in a fresh kernel; returns it with outputs, up to the failing cell, and
    what failed."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    error, deadline = None, time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="quasar-report-") as folder, _environment(STAGING):
        source, done = Path(folder) / "source.ipynb", Path(folder) / "done.ipynb"
        nbformat.write(notebook, source)
        try:
            papermill.execute_notebook(
                str(source),
                str(done),
                parameters=dict(values),
                kernel_name=KERNEL,
                language="python",  # some editors leave a notebook without one
                extra_arguments=QUIET,
                # papermill's own limit is per cell; nbclient asks this before each one.
                timeout_func=lambda cell: max(1.0, deadline - time.monotonic()),
                progress_bar=False,
            )
        except PapermillExecutionError as failure:
            error = f"{failure.ename}: {failure.evalue}".splitlines()[0]
        except CellTimeoutError:
            error = f"the notebook took longer than {timeout} s"
        except DeadKernelError:
            error = "the kernel died"
        return nbformat.read(done if done.exists() else source, as_version=4), error


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables that kernels started in the block inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _write_script(path: Path) -> None:
    from plotly.offline import get_plotlyjs

    storage.write_text(path, get_plotlyjs())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _about(runs: Sequence[Run]) -> dict[str, Any]:
    """When and where: what numbers of a report need to be compared with those of another."""
    return {
        "created": _now(),
        "machine": cpu_name(),
        "backend": select("auto", "cpu").name,
        "models": list(dict.fromkeys(run.model for run in runs if run.model)),
        "versions": versions(),
    }


def _summary(runs: Sequence[Run], about: dict[str, Any]) -> dict[str, Any]:
    return {
        **about,
        "notebooks": [
            {
                "name": run.name,
                "title": run.title,
                "page": run.file,
                "status": "ok" if run.error is None else "failed",
                "error": run.error,
                "seconds": round(run.seconds, 2),
                "ran": run.ran,
                "fingerprint": run.fingerprint,
                "parameters": run.parameters,
                "results": run.results,
            }
            for run in runs
        ],
    }
