"""Models to test on: a tiny random one (`tiny_models` writes them, of every family), and the embedded one."""

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
