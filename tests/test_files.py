"""Files that are read if they are files, and appear whole or not at all."""

from __future__ import annotations

import errno
import os

import pytest

from spyre.cache import digest_of_sources
from spyre.files import atomic_write, read_regular


def test_a_file_is_replaced(tmp_path):
    target = tmp_path / "a.json"
    target.write_text("old")
    with atomic_write(target) as place:
        place.write_text("new")
        assert target.read_text() == "old"
        assert place.suffix == ".json"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_nothing_is_left_of_a_file_that_is_not_finished(tmp_path):
    target = tmp_path / "a.json"
    target.write_text("old")

    def interrupted():
        with atomic_write(target) as place:
            place.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_errors_are_those_of_writing(tmp_path):
    def write():
        with atomic_write(tmp_path / "no" / "a") as place:
            place.write_text("x")

    with pytest.raises(FileNotFoundError):
        write()


def test_only_files_are_read(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    assert read_regular(tmp_path / "a") == b"content"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="no regular file"):
            read_regular(path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "b")


def test_a_file_larger_than_memory(tmp_path):
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 1 << 43)
    with pytest.raises(OSError, match="memory") as caught:
        read_regular(tmp_path / "a")
    assert caught.value.errno == errno.ENOMEM


def test_a_pipe_among_kept_digests_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "a.py").write_text("1")
    digest = digest_of_sources([str(tmp_path / "a.py")])
    (kept,) = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    kept.unlink()
    os.mkfifo(kept)
    assert digest_of_sources([str(tmp_path / "a.py")]) == digest
