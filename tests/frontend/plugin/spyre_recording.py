"""A pytest plugin for torch-spyre's tests: takes a sample, limits time, writes down outcomes.

`tests.frontend` loads it in the process it starts per file; SPYRE_FRONTEND_RUN holds its settings.
"""

from __future__ import annotations

import json
import os
import signal
import typing
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

SETTINGS = "SPYRE_FRONTEND_RUN"
MOST_TEXT = 2000

if not hasattr(typing, "override"):  # Python 3.11, which torch-spyre's tests do without
    import typing_extensions

    typing.override = typing_extensions.override  # type: ignore[attr-defined]

_settings: dict[str, Any] = json.loads(os.environ.get(SETTINGS, "{}"))


class TestTakesTooLong(Exception):
    """A test has used up the seconds there are for one."""

    __test__ = False


def _write(row: dict[str, Any]) -> None:
    with open(_settings["results"], "a") as file:
        file.write(json.dumps(row) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the sample, without what an earlier process has done."""
    share, parts = _settings["sample"]
    done = set(_settings["done"])
    items[:] = [
        item
        for item in items
        if item.nodeid not in done and zlib.crc32(item.nodeid.encode()) % parts == share
    ]
    # A run that is stopped early has tests from everywhere.
    items.sort(key=lambda item: zlib.crc32(item.nodeid[::-1].encode()))


def _stop(*_: object) -> None:
    raise TestTakesTooLong(f"more than {_settings['seconds']} s")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _write({"id": item.nodeid, "begun": True})
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(_settings["seconds"])
    yield
    signal.alarm(0)


def _findings() -> list[str]:
    """What the sanitizer has found since the last test."""
    if not _settings.get("sanitize"):
        return []
    import torch

    return [str(finding.to_finding()) for finding in torch.spyre.sanitizer_findings()]


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Before others turn failures into expected ones: what was raised."""
    outcome = yield
    report = outcome.get_result()
    error = call.excinfo
    if error is not None:
        report.spyre_error = f"{error.typename}: {error.value}"[:MOST_TEXT]
        last = error.traceback[-1]
        report.spyre_place = f"{last.path}:{last.lineno + 1}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    _write(
        {
            "id": report.nodeid,
            "outcome": report.outcome,
            "when": report.when,
            "expected_failure": hasattr(report, "wasxfail"),
            "strict_pass": "XPASS" in str(report.longrepr or ""),
            "seconds": round(report.duration, 2),
            "error": getattr(report, "spyre_error", ""),
            "place": getattr(report, "spyre_place", ""),
            "findings": _findings() if report.when == "call" else [],
        }
    )
