"""Prepared weights on a disk that fails, and in a cache that cannot be written."""

import pytest
import torch
from tiny_models import write_chat_model

import quasar_lab as ql
from quasar_lab.quantization import saved_model
from quasar_lab.support import storage
from quasar_lab.support.errors import StorageError

RECIPE = "w8a8-plain"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model with a tokenizer, since calibration reads text."""
    folder = tmp_path_factory.mktemp("bytes")
    write_chat_model(folder, max_position_embeddings=4096)
    return ql.load(folder)


def test_weights_of_the_right_size_that_are_zeros_are_prepared_again(tiny, cache_here):
    folder = saved_model.prepare(tiny, RECIPE)
    weights = folder / "weights.safetensors"
    content = weights.read_bytes()
    for damage in (bytes(len(content)), content[:-1] + bytes([content[-1] ^ 1])):
        weights.write_bytes(damage)
        assert saved_model.prepare(tiny, RECIPE) == folder
        assert weights.read_bytes() == content


def test_what_is_prepared_is_read_once(tiny, cache_here, monkeypatch):
    saved_model.prepare(tiny, RECIPE)
    saved_model.prepare(tiny, RECIPE)
    monkeypatch.setattr(storage, "sha256_file", lambda path: pytest.fail(f"{path} is read again"))
    saved_model.prepare(tiny, RECIPE)


def test_a_prepared_model_needs_no_lock_and_writes_nothing(tiny, cache_here, monkeypatch):
    ql.quantize(tiny, RECIPE)
    before = {path: path.stat().st_mtime_ns for path in cache_here.rglob("*")}

    def refuse(*_args, **_options):
        raise PermissionError(13, "Read-only file system")

    for target, name in ((storage, "FileLock"), (storage.tempfile, "mkstemp"), (storage.tempfile, "mkdtemp")):
        monkeypatch.setattr(target, name, refuse)
    again = ql.quantize(tiny, RECIPE)
    assert torch.isfinite(again.forward([1, 2], again.new_cache(2)).logits).all()
    assert {path: path.stat().st_mtime_ns for path in cache_here.rglob("*")} == before


def test_a_cache_that_cannot_be_written_and_lacks_the_model_is_one_sentence(tiny, cache_here, monkeypatch):
    cache_here.mkdir()
    monkeypatch.setattr(storage.Path, "touch", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    with pytest.raises(StorageError, match=r"cannot be written .* set QUASAR_CACHE to a writable one"):
        ql.quantize(tiny, RECIPE)
