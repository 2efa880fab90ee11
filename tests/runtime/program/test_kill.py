"""Five compilers killed; ``python -m tests.runtime.program.kill --count 100`` kills more."""

from __future__ import annotations

from tests.runtime.program.kill import kill_often


def test_readers_never_find_half_of_it() -> None:
    found = kill_often(5, seed=1)
    assert found["no code"] + found["whole code"] == 5
    assert found["no plan"] + found["whole plan"] == 10
