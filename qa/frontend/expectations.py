"""Expectations of torch-spyre's configuration for the card, test by test.

A checkout has files ``tests/configs/torch_spyre_tests/**/*.yaml``. Each holds names of test files,
modes by regular expressions over ``Class::test``, and the mode of unlisted tests.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from qa.frontend.plugin.spyre_recording import load_yaml

ALL_CONFIGS = "tests/configs/"
CONFIGS = f"{ALL_CONFIGS}torch_spyre_tests"
ROOT = "${TORCH_DEVICE_ROOT}/"
MANDATORY = "mandatory_success"


@dataclass
class FileRules:
    """Modes of the tests of one file."""

    names: list[tuple[str, str]] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)

    @cached_property
    def compiled(self) -> list[tuple[str, re.Pattern[str]]]:
        """Modes in order; consecutive names of one mode are joined to one expression."""
        return [
            (mode, re.compile("|".join(f"(?:{name})" for name, _ in group)))
            for mode, group in groupby(self.names, key=itemgetter(1))
        ]

    def mode(self, name: str) -> str:
        """Return the mode of ``Class::test[parameters]`` or ``Class::test``: its first entry's."""
        plain = name.partition("[")[0]
        for mode, rule in self.compiled:
            if rule.fullmatch(name) or rule.fullmatch(plain):
                return mode
        # A file split over several configurations: each lists its part and skips the others.
        if MANDATORY in self.unlisted or not self.unlisted:
            return MANDATORY
        return self.unlisted[0]


class Expectations:
    """The modes of all tests of a checkout."""

    def __init__(self, checkout: Path) -> None:
        self.files: dict[str, FileRules] = defaultdict(FileRules)
        for path in sorted((checkout / CONFIGS).rglob("*.yaml")):
            for entry in _entries(path):
                self._add(entry)

    def _add(self, entry: dict[str, Any]) -> None:
        rules = self.files[str(entry["path"]).removeprefix(ROOT)]
        if (unlisted := entry.get("unlisted_test_mode")) is not None:
            rules.unlisted.append(unlisted)
        for group in entry.get("tests") or ():
            rules.names += [(name, str(group.get("mode"))) for name in group.get("names") or ()]

    def mode(self, node: str) -> str:
        """Return the mode of a pytest node id; "unconfigured" if no configuration has its file.
        Tests of ``--configs`` are mandatory: torch-spyre's runner has marked the others itself.
        """
        if node.startswith(ALL_CONFIGS):
            return MANDATORY
        path, _, name = node.partition("::")
        rules = self.files.get(path)
        return "unconfigured" if rules is None else rules.mode(name)

    def test_files(self, checkout: Path) -> list[str]:
        """Return the configured files that exist, in order."""
        return sorted(path for path in self.files if (checkout / path).is_file())


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    document = load_yaml(path.read_text()) or {}
    yield from (document.get("test_suite_config") or {}).get("files") or ()
