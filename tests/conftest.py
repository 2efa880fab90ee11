"""Fixtures every test folder shares: golden texts and the real bundles."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.corpus import shown
from tests.examples import examples

# Times depend on the machine and its load: neither slow inputs nor slow cases are failures.
settings.register_profile("any machine", examples(100))
settings.load_profile("any machine")

# With a cold cache, processes of tests would print progress among the output that is checked.
os.environ.setdefault("SPYRE_PROGRESS", "0")

# Tests must not depend on which kernels are compiled; those of interpreted kernels change this.
os.environ.setdefault("SPYRE_MEANWHILE", "0")

# Tests make many objects, of which few are garbage.
gc.set_threshold(10_000)

SHARED = Path(__file__).resolve().parents[2] / "shared"


def accepted_files(shared: Path, pattern: str) -> list[Path]:
    """Files of the programs that compilers write right and wrong, without those we refuse."""
    return sorted([*shared.glob(f"bundles/{pattern}"), *shared.glob(f"bundles-wrong/{pattern}")])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files with what was found"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist take files in the order of `pytest_collection_modifyitems`."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of the files in slow.txt are marked ``slow``, as those that carry the mark.

    Workers of xdist begin with these files, in the order of the list: the longest first, so that no
    worker is left alone with one at the end.
    """
    slow = (Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").split()
    assert all((config.rootpath / name).is_file() for name in slow)
    places = {name: place for place, name in enumerate(slow)}
    for item in items:
        if _file_of(item) in places:
            item.add_marker("slow")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: places.get(_file_of(item), len(places)))


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Generator[None]:
    """Exclude objects of earlier modules from garbage collections, which took a second each.

    A module's own garbage is collected at its end, and everything after twenty modules.
    """
    gc.freeze()
    yield
    if next(_modules) % 20 == 0:
        gc.unfreeze()
    gc.collect()


_modules = itertools.count(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than processors: tests of processes, ranks and streams often wait."""
    return len(os.sched_getaffinity(0)) + 1


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before the workers of xdist start, kernels are compiled: each worker would compile its own.

    This hook runs before that of xdist, which starts the workers.
    """
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if is_worker or not getattr(session.config.option, "numprocesses", None):
        return
    subprocess.run([sys.executable, "-m", "spyre.cli.run", "--warm", "-q"], check=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Tests whose findings are examples of codes must still make them."""
    codes = shown.codes_by_test().get(item.nodeid)
    if codes is None:
        return (yield)
    with shown.recorded() as texts:
        yield
    shown.compare(codes, texts, item.config.getoption("--update-golden"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """``golden(path, text)`` compares ``text`` with the file, or rewrites it on request."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The directory of real bundles and measurements beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("the real bundles (../shared) are not here")
    return SHARED
