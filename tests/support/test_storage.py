"""All or nothing: what a killed, refused or crowded writer leaves behind."""

import json
import os
import stat

import pytest

from quasar_lab.support import storage
from quasar_lab.support.errors import QuasarError, StorageError


@pytest.mark.parametrize("value", ["{file}", "{file}/below", "~nobody-of-this-name/x", "/proc/q"])
def test_a_cache_that_cannot_be_is_one_clear_error(value, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUASAR_CACHE", value.format(file=tmp_path / "file"))
    with pytest.raises(StorageError, match="QUASAR_CACHE"):
        storage.cache_folder()


def test_an_empty_variable_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("QUASAR_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path in storage.cache_folder().parents or "Caches" in str(storage.cache_folder())


def test_what_a_killed_builder_left_is_removed(cache_here):
    final = cache_here / "models" / "m"
    for name in (".m-abc123", ".m-def456", ".other-abc"):
        (cache_here / "models" / name).mkdir(parents=True)
    storage.build_once(final, lambda path: (path / "done").exists(), lambda work: (work / "done").touch())
    assert sorted(path.name for path in (cache_here / "models").iterdir()) == [".other-abc", "m"]


def test_a_failed_build_leaves_what_was_there(cache_here):
    final = cache_here / "m"
    final.mkdir(parents=True)
    (final / "old").touch()

    def fail(work):
        (work / "half").touch()
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left"):
        storage.build_once(final, lambda path: False, fail)
    assert [path.name for path in final.iterdir()] == ["old"]
    assert not list(cache_here.glob(".m-*"))


def test_files_and_folders_have_the_usual_permissions(cache_here, tmp_path):
    before = os.umask(0o022)
    try:
        storage.build_once(cache_here / "m", lambda path: False, lambda work: None)
        storage.write_text(tmp_path / "t.txt", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((cache_here / "m").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "t.txt").stat().st_mode) == 0o644


@pytest.mark.parametrize("memo", ["[]", "5", "null", "\xff", "{", '{"a": 1}'])
def test_a_damaged_memo_is_only_forgotten(memo, cache_here, tmp_path):
    cache_here.mkdir()
    (cache_here / "checksums.json").write_bytes(memo.encode("latin-1"))
    (tmp_path / "a").write_text("content")
    first = storage.sha256_files([tmp_path / "a"])
    assert storage.sha256_files([tmp_path / "a"]) == first
    assert len(json.loads((cache_here / "checksums.json").read_text())) >= 1


@pytest.mark.parametrize("path", ["{here}", "{here}/missing/x.txt", "/proc/x.txt"])
def test_unwritable_paths_are_refused_before_and_at_writing(path, tmp_path):
    target = storage.Path(path.format(here=tmp_path))
    with pytest.raises(StorageError, match="accepted"):
        storage.check_writable(target)
    if "missing" not in path:
        with pytest.raises(QuasarError):
            storage.write_text(target, "x")
    assert list(tmp_path.iterdir()) == []
