"""Watched pages and a JupyterLab, to try the lab in as a person would.

Every page is watched: what its console calls an error, and every request that leaves this machine.
"""

import os
import secrets
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from quasar_lab import reports
from quasar_lab.cli import jupyter as launcher

SHORT = ["import quasar_lab as ql", "panel = ql.widgets.pick_model()\npanel", "print('below:', panel.chosen.recipe)"]
"""Cells of `short.ipynb`: the model panel, and one cell below it."""

CONTROLS = [
    "import quasar_lab as ql\nmodel = ql.load()",
    "ql.widgets.outlier_explorer(model)",
    "ql.widgets.generate_live([model], 'hi', max_new_tokens=4)",
    "ql.widgets.pick_model()",
]
"""Cells of `controls.ipynb`: every panel with controls of its own."""

HERE = ("127.0.0.1", "localhost")


@dataclass
class Watched:
    """errors: what the console or an uncaught exception said. outside: addresses asked for beyond this machine."""

    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


@contextmanager
def watched_page(browser, **options) -> Iterator[tuple]:
    """(page, what was seen on it); requests that would leave this machine are noted and refused."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, **options)
    seen = Watched()

    def gate(route):
        address = route.request.url
        host = address.partition("://")[2].partition("/")[0].rpartition("@")[2].partition(":")[0]
        if address.startswith(("file:", "data:", "blob:", "about:")) or host in HERE:
            route.continue_()
        else:
            seen.outside.append(address)
            route.abort()

    context.route("**/*", gate)
    page = context.new_page()
    page.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    try:
        yield page, seen
    finally:
        context.close()


@pytest.fixture
def page(browser):
    """(page, what was seen on it)."""
    with watched_page(browser) as found:
        yield found


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory):
    """name → address of a notebook in a JupyterLab on a copy of them all, started as `quasar-lab lab` does, with a
    token."""
    folder = tmp_path_factory.mktemp("lab")
    notebooks = folder / "notebooks"
    shutil.copytree(reports.notebook_folder(), notebooks, ignore=shutil.ignore_patterns(".*"))
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for name, sources in (("short", SHORT), ("controls", CONTROLS)):
        cells = [new_code_cell(source) for source in sources]
        nbformat.write(new_notebook(cells=cells, metadata=kernel), notebooks / f"{name}.ipynb")
    token, port = secrets.token_hex(16), _free_port()
    settings = {
        **os.environ,
        **launcher.environment(folder / "jupyter"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    settings.pop("QUASAR_HEADLESS", None)
    settings.pop("PLOTLY_RENDERER", None)
    arguments = [
        *launcher.command(notebooks, port),
        "--no-browser",
        f"--IdentityProvider.token={token}",
        "--ServerApp.port_retries=0",
    ]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(arguments, env=settings, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            _answers(f"http://127.0.0.1:{port}/api/status?token={token}", server, folder / "server.log")
            yield lambda name: f"http://127.0.0.1:{port}/lab/tree/{name}.ipynb?token={token}&reset"
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(address: str, server: subprocess.Popen, log: Path, seconds: float = 120) -> None:
    """Returns when the server answers; fails with its log when it ends or stays silent."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")
