"""A pytest plugin that writes each test's outcome to a file as soon as it is known.

`.runs` loads it in separate processes; environment variables name the file and the tests. A test's
begin is written too, so that a test that ends the process is known by name.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

RECORD, CHOSEN = "NEIGHBOUR_RECORD", "NEIGHBOUR_CHOSEN"
"""Environment variables: the file of outcomes; the finished and chosen tests, the piece, and the
seconds after which a test that hangs ends its process."""
BEGUN = "begun"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen piece that have no outcome yet."""
    chosen = json.loads(os.environ[CHOSEN])
    only, done = chosen["only"], set(chosen["done"])
    piece, pieces = chosen["piece"]
    items.sort(key=lambda item: item.nodeid)
    kept = [item for item in items[piece - 1 :: pieces] if name_of(item.nodeid) not in done]
    items[:] = kept if only is None else [i for i in kept if name_of(i.nodeid) in set(only)]


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    limit = json.loads(os.environ[CHOSEN])["limit"]
    faulthandler.dump_traceback_later(limit, exit=True, file=sys.__stderr__)
    _write(name_of(nodeid), BEGUN, "")


def pytest_runtest_logfinish(nodeid: str, location: Any) -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a test's call, or of a setup or teardown that did not pass."""
    if report.when == "call" or report.outcome != "passed":
        _write(name_of(report.nodeid), report.outcome, _why(report))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(f"(collection of {Path(report.nodeid).name})", "failed", _why(report))


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the error's first line and the greatest differences in it, or the reason of a skip."""
    lines = report.longreprtext.strip().splitlines()
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    differences = [line for line in errors[1:] if line.startswith("Greatest ")]
    return "; ".join([*(errors or lines[-1:])[:1], *differences])


def name_of(nodeid: str) -> str:
    """Return the node id without the directory, which depends on pytest's root."""
    file, _, rest = nodeid.partition("::")
    return f"{Path(file).name}::{rest}"


def _write(name: str, outcome: str, why: str) -> None:
    with Path(os.environ[RECORD]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, outcome, why[:300]]) + "\n")
