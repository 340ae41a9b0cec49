"""Where things are kept, and how they are written: all or nothing.

A folder is built under a temporary name beside its final place and renamed in one step, so that a reader sees a
complete folder or none, and a killed process leaves nothing that looks finished. A lock file lets two processes that
want the same folder agree on one builder. The cache lives in ``$QUASAR_CACHE``, else in the user's cache folder.
"""

import glob
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from quasar_lab.support.errors import StorageError


def cache_folder() -> Path:
    """The cache folder, created when missing. Raises StorageError when it cannot be."""
    if os.environ.get("QUASAR_CACHE"):
        folder = Path(os.environ["QUASAR_CACHE"])
    elif sys.platform == "darwin":
        folder = Path("~/Library/Caches/quasar_lab")
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "quasar_lab"
    try:
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise StorageError(
            f"the cache folder {folder} cannot be used ({error}); set QUASAR_CACHE to a writable one"
        ) from error
    return folder


def packaged_folder(name: str) -> Path:
    """A folder that comes with the project ("notebooks", "data/calibration"): inside the installed package, or in a
    checkout beside it."""
    package = Path(__file__).parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def why_unreadable(error: Exception) -> str:
    """Why a text file cannot be read, in words."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def folder_bytes(folder: Path) -> int:
    """Total size in bytes of the files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _usual_mode(path: Path | str, mode: int) -> None:
    """Gives a temporary file or folder, which only its maker may read, the permissions of an ordinary new one."""
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(path, mode & ~umask)


def _to_disk(folder: Path) -> None:
    """Has the content of every file below `folder` on the disk before a rename tells that it is: otherwise a power cut
    may leave the name with a file of zeros."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `final` when the block ends, replacing it, and vanishes when the block
    raises.

    Raises StorageError when it cannot be written.
    """
    work: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
        yield work
        _to_disk(work)
        _usual_mode(work, 0o777)
        if final.exists():
            shutil.rmtree(final)
        os.replace(work, final)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{final} cannot be written: {error}") from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def build_once(final: Path, complete: Callable[[Path], bool], build: Callable[[Path], None]) -> Path:
    """Returns `final`, building it first when `complete(final)` is false; one process builds, the others wait and
    reuse. Where it is complete nothing is locked and nothing written, so that a read-only cache can be shared.

    Work folders that a killed builder left beside `final` are removed. Raises StorageError when it cannot be written.
    """
    if complete(final):
        return final
    with lock(str(final.absolute())):
        if not complete(final):
            for left in final.parent.glob(f".{glob.escape(final.name)}-*"):
                shutil.rmtree(left, ignore_errors=True)
            with new_folder(final) as work:
                build(work)
    return final


def lock(name: str, timeout: float = -1) -> FileLock:
    """A lock between processes, by name; its file is in the cache, not beside what it guards."""
    folder = cache_folder() / "locks"
    file = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock"
    try:
        folder.mkdir(exist_ok=True)
        file.touch()
    except OSError as error:
        raise StorageError(
            f"the cache folder {folder.parent} cannot be written ({error}), and what is wanted is not in it; "
            "set QUASAR_CACHE to a writable one"
        ) from error
    return FileLock(file, timeout=timeout)


def check_writable(path: Path) -> None:
    """Raises StorageError unless a file can be written at `path`: asked before long work, not after it."""
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error}); accepted: a file in a writable folder") from error


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path` by way of a temporary file and a rename. Raises StorageError when it cannot be
    written."""
    name: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _usual_mode(name, 0o666)
        os.replace(name, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}") from error
    finally:
        if name is not None:
            Path(name).unlink(missing_ok=True)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_files(paths: list[Path]) -> str:
    """Hex SHA-256 over names and contents; remembered per (path, inode, size, times of change), since a large model
    takes a while to read."""
    total = hashlib.sha256()
    for path, digest in zip(sorted(paths), _remembered_digests(sorted(paths)), strict=True):
        total.update(f"{path.name}\0{digest}\0".encode())
    return total.hexdigest()


def holds(path: Path, digest: str) -> bool:
    """Whether the file is there with the content of this SHA-256. A file that was looked at before, and has not been
    touched since, is not read again."""
    return path.is_file() and _remembered_digests([path]) == [digest]


def _remembered_digests(paths: list[Path]) -> list[str]:
    """The SHA-256 of every file, from the memo where the file is as it was."""
    memo_file = cache_folder() / "checksums.json"
    try:
        memo = dict(json.loads(memo_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        memo = {}  # a memo that is missing or damaged costs a second look at the files, no more
    found, changed = [], False
    for path in paths:
        status = path.stat()
        stamps = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        key = "|".join(map(str, (path.resolve(), *stamps)))
        if key not in memo:
            memo[key], changed = sha256_file(path), True
        found.append(memo[key])
    if changed:
        with suppress(StorageError):  # a read-only cache is still a cache
            write_text(memo_file, json.dumps(memo, indent=0))
    return found
