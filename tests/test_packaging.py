"""What is installed is what lies in the checkout: every package, every file of data, from a wheel and from an sdist.

The files of a release are built from a copy of the sources, with a compiler that does not work: the C++ extension is
optional, and its sources are compared instead.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETTINGS = PYPROJECT["tool"]["setuptools"]
SHIPPED = {".css", ".ipynb", ".js", ".json", ".jsonl", ".py"}
CPP = {".cpp", ".h", ".inl"}
FOLDERS = {
    "quasar_lab": "quasar_lab",
    "kernels/quasar_kernels": "quasar_kernels",
    "notebooks": "quasar_lab/notebooks",
    "data": "quasar_lab/data",
}
"""Folder of the checkout → where it is installed."""
IGNORED = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "*.so", "*.egg-info")


def wanted(suffixes=SHIPPED):
    """The files of the checkout, as they are installed."""
    found = set()
    for folder, installed in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            hidden = any(part in ("__pycache__", ".ipynb_checkpoints") for part in path.parts)
            if path.suffix in suffixes and not hidden:
                found.add(f"{installed}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


def folder_of(package):
    """The folder of a package, as `package-dir` maps it."""
    mapped = SETTINGS["package-dir"]
    parts = package.split(".")
    for length in range(len(parts), 0, -1):
        head = ".".join(parts[:length])
        if head in mapped:
            return "/".join([mapped[head], *parts[length:]])
    return "/".join(parts)


def test_every_folder_of_python_files_is_a_listed_package():
    listed = {folder_of(package) for package in SETTINGS["packages"]}
    here = {
        path.parent.relative_to(ROOT).as_posix()
        for folder in ("quasar_lab", "kernels/quasar_kernels")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert here <= listed
    assert all((ROOT / folder).is_dir() for folder in listed)
    without = [folder for folder in here if not (ROOT / folder / "__init__.py").exists()]
    assert not without, "a package needs an __init__.py"


def test_every_cpp_source_is_compiled_or_watched():
    """A header that is not watched does not rebuild the extension when it changes."""
    extension = SETTINGS["ext-modules"][0]
    folder = ROOT / "kernels" / "quasar_kernels" / "cpu"
    here = {path.relative_to(ROOT).as_posix() for path in folder.iterdir() if path.suffix in CPP}
    alone = {"kernels/quasar_kernels/cpu/selftest.cpp", "kernels/quasar_kernels/cpu/pool.cpp"}
    assert here - alone <= {*extension["sources"], *extension["depends"]}
    assert {*extension["sources"], *extension["depends"]} <= here


def test_what_make_install_takes_is_pinned():
    """Each name of the dependencies has one line in constraints.txt, or is left to pip on purpose."""
    project = PYPROJECT["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if "==" in line}
    asked = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    names = {name.partition(";")[0].partition(">")[0].strip().lower() for name in asked}
    assert names - pinned == {"mdit-py-plugins", "latex2mathml"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of what a release is made from."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("quasar_lab", "kernels", "notebooks", "data"):
        shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    return folder


def build(hook, sources, out):
    """The file that a hook of the build backend (`build_wheel`, `build_sdist`) writes into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    code = f"from setuptools import build_meta; build_meta.{hook}({str(out)!r})"
    environment = {**os.environ, "CC": "false", "CXX": "false"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=sources, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return next(out.iterdir())


def files_of(wheel):
    """The files that a wheel installs, without its own records."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def sdist(sources, tmp_path_factory):
    """An sdist, unpacked."""
    out = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("build_sdist", sources, out / "built")) as archive:
        archive.extractall(out, filter="data")
    return next(path for path in out.iterdir() if path.name.startswith("quasar_lab-"))


@pytest.mark.slow
def test_a_wheel_has_every_file(sources, tmp_path):
    files = files_of(build("build_wheel", sources, tmp_path / "wheel"))
    assert {name for name in files if Path(name).suffix in SHIPPED} == wanted()
    assert "quasar_lab/data/README.md" in files


@pytest.mark.slow
def test_an_sdist_has_what_a_compiler_needs(sdist):
    here = {f"quasar_kernels/{path.relative_to(sdist / 'kernels' / 'quasar_kernels').as_posix()}"
            for path in (sdist / "kernels" / "quasar_kernels").rglob("*") if path.suffix in CPP}  # fmt: skip
    assert here == wanted(CPP)
    assert (sdist / "LICENSE").exists()


@pytest.mark.slow
def test_a_wheel_made_from_the_sdist_has_every_file_and_runs(sdist, tmp_path):
    wheel = build("build_wheel", sdist, tmp_path / "wheel")
    assert {name for name in files_of(wheel) if Path(name).suffix in SHIPPED} == wanted()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n"
        "import json, quasar_kernels, quasar_lab\n"
        "from quasar_kernels.triton import tiles\n"
        "from quasar_lab.evaluation.questions import ours\n"
        "from quasar_lab.reports import notebook_folder\n"
        "print(json.dumps([quasar_lab.__file__, quasar_kernels.__file__, str(notebook_folder()), len(ours()),"
        " sorted(tiles.table('conservative')), quasar_kernels.availability()['cpu']]))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *places, questions, tables, cpu = json.loads(done.stdout)
    assert all(place.startswith(str(tmp_path)) for place in places)
    assert questions > 0
    assert "linear_w8a8" in tables
    assert "not built" in cpu
