"""Where things are kept, and how they are written: all or nothing.

A folder is built under a temporary name beside its final place and renamed in one step, so that a reader sees a
complete folder or none, and a killed process leaves nothing that looks finished. A lock file lets two processes that
want the same folder agree on one builder. The cache lives in ``$QUASAR_CACHE``, else in the user's cache folder.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


def cache_folder() -> Path:
    """The cache folder, created when missing."""
    if "QUASAR_CACHE" in os.environ:
        folder = Path(os.environ["QUASAR_CACHE"]).expanduser()
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches" / "quasar_lab"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quasar_lab"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def packaged_folder(name: str) -> Path:
    """A folder that comes with the project ("notebooks", "data/calibration"): inside the installed package, or in a
    checkout beside it."""
    package = Path(__file__).parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def folder_bytes(folder: Path) -> int:
    """Total size in bytes of the files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `final` when the block ends, and vanishes when it raises."""
    final.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        yield work
        if final.exists():
            shutil.rmtree(final)
        os.replace(work, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def build_once(final: Path, complete: Callable[[Path], bool], build: Callable[[Path], None]) -> Path:
    """Returns `final`, building it first when `complete(final)` is false; one process builds, the others wait and
    reuse."""
    if complete(final):
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(final.parent / f".{final.name}.lock"):
        if not complete(final):
            with new_folder(final) as work:
                build(work)
    return final


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path` by way of a temporary file and a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_files(paths: list[Path]) -> str:
    """Hex SHA-256 over names and contents; remembered per (path, size, time of change), since a large model takes a
    while to read."""
    memo_file = cache_folder() / "checksums.json"
    try:
        memo = json.loads(memo_file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        memo = {}
    total, changed = hashlib.sha256(), False
    for path in sorted(paths):
        status = path.stat()
        key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
        if key not in memo:
            memo[key], changed = sha256_file(path), True
        total.update(f"{path.name}\0{memo[key]}\0".encode())
    if changed:
        write_text(memo_file, json.dumps(memo, indent=0))
    return total.hexdigest()
