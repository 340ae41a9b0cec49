"""Programs as they run on a machine where no clone of the package is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

WITHOUT_CLONES = """
import os, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
NAMES = ("quasar_lab", "quasar_kernels")
sys.path[:] = [path for path in sys.path if not any(os.path.isdir(os.path.join(path, name)) for name in NAMES)]
for name in NAMES:
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} is installed")
"""
"""Hides every clone that is importable, installed or on the path, and makes sure of it."""


def run_isolated(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own in `folder`, without the environment's PYTHONPATH and without clones.

    One thread: what runs here is small, and tests run side by side.
    """
    return subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT_CLONES + code],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def checkout(folder: Path) -> Path:
    """Writes a copy of this checkout's packages into `folder`."""
    for part in ("quasar_lab", "kernels/quasar_kernels", "kernels/benchmarks"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
