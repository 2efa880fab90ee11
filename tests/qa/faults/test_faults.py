"""A few faults of every kind; ``python -m qa.faults`` injects more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qa.faults.damages import CHANGES, PLACES
from qa.faults.inject import KINDS, Place, chosen, report, workshop

COUNTS = {"files": 80, "outputs": 6, "streams": 1, "signals": 1, "together": 4}
"""A file takes 20 ms, a process a second; caches and memory are left to the long form."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with workshop(tmp_path_factory.mktemp("faults") / "shop") as made:
        yield made


@pytest.mark.parametrize("kind", COUNTS)
def test_nothing_is_damaged(place: Place, kind: str) -> None:
    outcomes = report(chosen(place, [kind], COUNTS[kind], seed=1), seed=1)
    assert not "\n".join(text for _, text in outcomes if text)


def test_every_kind_of_fault_is_known(place: Place) -> None:
    names = [fault.name for kind in KINDS if kind != "caches" for fault in KINDS[kind](place)]
    assert len(set(names)) == len(names)
    assert len(CHANGES) + len(PLACES) >= 30
