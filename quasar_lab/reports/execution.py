"""Runs one notebook in a fresh kernel, and says in one sentence why it stopped.

## Choice

The kernel is this Python, whatever kernels are registered on the machine: the lab is installed here, and the entry
`python3` of an environment that was removed leads nowhere. What the kernel writes to its own stderr is kept, because it
may be the only word of a kernel that died.
"""

import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from traitlets import TraitError
from zmq import ZMQError

STAGING = {
    "PLOTLY_RENDERER": "plotly_mimetype",
    "QUASAR_HEADLESS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}
"""Environment of the kernels: figures as their JSON, static figures in place of widgets, and no progress bars, since a
page could only show them as widgets without life."""

QUIET = ["--IPKernelApp.log_level=ERROR"]
"""Arguments of the kernels. Without them each kernel warns that its sockets, which only this machine can reach, are not
encrypted."""

NO_KERNEL = (NoSuchKernel, TraitError, ZMQError, OSError, RuntimeError, json.JSONDecodeError)
"""What jupyter_client and the system raise when a kernel cannot be started or reached."""


class OwnKernel(AsyncKernelManager):
    """Starts kernels with this Python. `said`: the file that takes their stderr."""

    said: Path

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())

    async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]  # the base assigns its own likewise
        with self.said.open("ab") as said:
            await super().start_kernel(stderr=said, **options)  # type: ignore[func-returns-value]


def execute(notebook: NotebookNode, values: Mapping[str, Any], timeout: int) -> tuple[NotebookNode, str | None]:
    """Runs a copy of `notebook` with papermill in a fresh kernel. Returns the copy, with outputs up to the failing
    cell, and what failed, or None. timeout: seconds, from the start of the kernel on."""
    import papermill
    from papermill.exceptions import PapermillException, PapermillExecutionError

    for name in ("papermill", "asyncio"):  # what they would say of a kernel that died is what this returns
        logging.getLogger(name).setLevel(logging.CRITICAL)
    error = None
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="quasar-report-") as folder, _environment(STAGING):
        source, done, said = (Path(folder) / name for name in ("source.ipynb", "done.ipynb", "stderr"))
        nbformat.write(notebook, source)
        try:
            papermill.execute_notebook(
                str(source),
                str(done),
                parameters=dict(values),
                kernel_name="python3",
                language="python",  # some editors write a notebook without one
                kernel_manager_class=type("Kernel", (OwnKernel,), {"said": said}),
                extra_arguments=QUIET,
                start_timeout=timeout,
                # papermill's own limit is per cell; nbclient asks this before each one.
                timeout_func=lambda cell: max(1.0, deadline - time.monotonic()),
                progress_bar=False,
            )
        except PapermillExecutionError as failure:
            error = f"{failure.ename}: {failure.evalue}".splitlines()[0].removesuffix(": ")
        except CellTimeoutError:
            error = f"the notebook took longer than {timeout} s"
        except DeadKernelError:
            error = f"the kernel died{_last_words(said)}"
        except (PapermillException, nbformat.ValidationError) as failure:
            error = f"the notebook cannot be run or written: {_first_line(failure)}"
        except NO_KERNEL as failure:
            error = f"the kernel could not be used: {_first_line(failure)}{_last_words(said)}"
        return nbformat.read(done if done.exists() else source, as_version=4), error


def _last_words(said: Path) -> str:
    """The last line that a kernel wrote to its stderr."""
    lines = said.read_text(encoding="utf-8", errors="replace").split("\n") if said.exists() else []
    words = [line.strip() for line in lines if line.strip()]
    return f" ({words[-1]})" if words else ""


def _first_line(failure: Exception) -> str:
    return next(iter(str(failure).splitlines()), "") or type(failure).__name__


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for the block; kernels that start in it inherit them."""
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
