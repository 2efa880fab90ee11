"""Files that appear whole or not at all."""

from __future__ import annotations

import pytest

from spyre.atomic_write import atomic_write


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
