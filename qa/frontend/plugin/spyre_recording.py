"""A pytest plugin for torch-spyre's tests: takes a sample, limits time, records outcomes.

`qa.frontend` loads it in the process it starts per file; SPYRE_FRONTEND_RUN holds its settings.
"""

from __future__ import annotations

import json
import os
import signal
import typing
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SETTINGS = "SPYRE_FRONTEND_RUN"
MOST_TEXT = 2000

if not hasattr(typing, "override"):  # Python 3.11, which torch-spyre's tests do without
    import typing_extensions

    typing.override = typing_extensions.override  # type: ignore[attr-defined]


def load_yaml(text: Any) -> Any:
    """``yaml.safe_load`` by libyaml where it is installed, which is twenty times as fast."""
    import yaml

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Replace the YAML loader: torch-spyre's conftest reads megabytes in every process."""
    import yaml

    yaml.safe_load = load_yaml


_settings: dict[str, Any] = json.loads(os.environ.get(SETTINGS, "{}"))


class TestTakesTooLong(Exception):
    """A test has exceeded its time limit."""

    __test__ = False


@dataclass
class Outcomes:
    """Contents of a record: the last outcome of every test (``rows``), files whose tests have all
    run (``complete``), and the test that has begun but not ended.
    """

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    complete: list[dict[str, Any]] = field(default_factory=list)
    begun: str | None = None

    def of(self, file: str) -> Outcomes:
        """Return the outcomes of one test file."""
        mine = {node: row for node, row in self.rows.items() if node.partition("::")[0] == file}
        complete = [line for line in self.complete if line["file"] == file]
        begun = self.begun and self.begun.partition("::")[0] == file
        return Outcomes(mine, complete, self.begun if begun else None)

    def take(self, line: dict[str, Any]) -> None:
        """Add a line of the record."""
        if "file" in line:
            self.complete.append(line)
        elif line.get("again"):
            self.rows.pop(line["id"], None)
            file = line["id"].partition("::")[0]
            self.complete = [other for other in self.complete if other["file"] != file]
        elif line.get("begun"):
            self.begun = line["id"]
        elif self.rows.get(line["id"], {}).get("outcome") != "failed":
            self.rows[line["id"]] = line
        if self.begun in self.rows:
            self.begun = None


def read_outcomes(record: Path) -> Outcomes:
    """Read a record that `append` wrote."""
    outcomes = Outcomes()
    for line in record.read_text().splitlines():
        outcomes.take(json.loads(line))
    return outcomes


def append(record: Path, line: dict[str, Any]) -> None:
    """Append a line to a record."""
    with record.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _named(node: str) -> str:
    """Return a node id, prefixed with the configuration if one is being run."""
    config = _settings.get("config")
    if config is None:
        return node
    path, _, name = node.partition("::")
    return f"{config}::{Path(path).name.replace('__oot_wrapper', '')}::{name}"


def _write(row: dict[str, Any]) -> None:
    append(Path(_settings["results"]), row)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the sample that no earlier process has run."""
    share, parts = _settings["sample"]
    done = read_outcomes(Path(_settings["results"])).rows
    items[:] = [
        item
        for item in items
        if (node := _named(item.nodeid)) not in done and zlib.crc32(node.encode()) % parts == share
    ]


def _stop(*_: object) -> None:
    raise TestTakesTooLong(f"more than {_settings['seconds']} s")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _write({"id": _named(item.nodeid), "begun": True})
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(_settings["seconds"])
    yield
    signal.alarm(0)


def _findings() -> list[str]:
    """Return the sanitizer's findings since the last test."""
    if not _settings.get("sanitize"):
        return []
    import torch

    return [str(finding.to_finding()) for finding in torch.spyre.sanitizer_findings()]


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Record the exception before other plugins turn the failure into an expected one."""
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
            "id": _named(report.nodeid),
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
