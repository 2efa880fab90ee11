"""A plugin of pytest that writes each test's outcome to a file, as soon as it is known.

Loaded by `.runs` in processes of their own; what to write and what to run comes from the
environment. A test that begins is written too, so that one that ends the process has a name.
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
"""Environment variables: the file of outcomes; what is done or chosen, the piece,
and the seconds after which a test that hangs ends its process."""
BEGUN = "begun"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the piece that was chosen, without the tests that have an outcome."""
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
    """A test has the outcome of its call, or of what failed or was skipped around it."""
    if report.when == "call" or report.outcome != "passed":
        _write(name_of(report.nodeid), report.outcome, _why(report))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(f"(collection of {Path(report.nodeid).name})", "failed", _why(report))


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The error's own words, with the greatest differences it names, or the reason of a skip."""
    lines = report.longreprtext.strip().splitlines()
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    differences = [line for line in errors[1:] if line.startswith("Greatest ")]
    return "; ".join([*(errors or lines[-1:])[:1], *differences])


def name_of(nodeid: str) -> str:
    """Without the directory, which depends on where pytest thinks its root is."""
    file, _, rest = nodeid.partition("::")
    return f"{Path(file).name}::{rest}"


def _write(name: str, outcome: str, why: str) -> None:
    with Path(os.environ[RECORD]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, outcome, why[:300]]) + "\n")
