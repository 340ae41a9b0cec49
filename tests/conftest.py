"""Models to test on, a tiny random one (`tiny_models` writes them, of every family) and the embedded one; a browser."""

import shutil

import pytest
from tiny_models import write_checkpoint

import quasar_lab as ql


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A tiny llama checkpoint folder."""
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, "llama")
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    return ql.load(tiny_folder)


@pytest.fixture(scope="session")
def embedded():
    return ql.load()


@pytest.fixture(scope="session")
def w8a8(embedded):
    return ql.quantize(embedded, "w8a8")


@pytest.fixture
def cache_here(tmp_path, monkeypatch):
    """An empty cache folder of the test's own."""
    monkeypatch.setenv("QUASAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def browser():
    """Chromium; tests that want it are skipped where there is none, and say how to get it."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip(reason="no chromium here; install it with: apt-get install chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-unsafe-swiftshader"]
    with api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=path, args=flags)
        except api.Error as error:
            pytest.skip(reason=f"{path} does not start: {str(error).splitlines()[0]}")
        yield found
        found.close()
