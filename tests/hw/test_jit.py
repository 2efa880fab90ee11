"""Where compiled kernels are kept, and what happens when they cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spyre.hw import jit


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Every test finds the directory anew; so do the kernels that load after them."""
    jit.cache_directory.cache_clear()
    yield
    jit.cache_directory.cache_clear()


def test_the_directory_is_keyed_by_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "cache"))
    directory = jit.cache_directory()
    assert directory is not None
    assert Path(directory).parent == tmp_path / "cache"
    assert Path(directory).is_dir()
    monkeypatch.setenv("SPYRE_VECTOR_WIDTH", "8")
    jit.cache_directory.cache_clear()
    assert jit.cache_directory() != directory


@pytest.mark.parametrize("place", ["file/below", "file"])
def test_without_a_place_kernels_compile_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / place))
    with pytest.warns(RuntimeWarning, match="compiled kernels cannot be kept"):
        assert jit.cache_directory() is None

    @jit.kernel
    def twice(x):
        return 2 * x

    assert twice(21) == 42


def test_no_home_directory_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPYRE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(RuntimeWarning, match="Could not determine home directory"):
        assert jit.cache_directory() is None
