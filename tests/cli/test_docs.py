"""docs/cli.md describes every option, exit code and JSON key, and shows the actual output."""

from __future__ import annotations

import json
import re

from spyre.cli.entry import EXIT_INTERRUPTED, EXIT_NOT_RUN
from spyre.cli.options import spyre_run_parser
from tests.cli.conftest import ROOT

TEXT = (ROOT / "docs" / "cli.md").read_text()


def test_every_option():
    parser = spyre_run_parser()
    flags = [flag for action in parser._actions for flag in action.option_strings]
    missing = [flag for flag in flags if f"{flag}`" not in TEXT and f"{flag} " not in TEXT]
    assert [flag for flag in missing if flag != "--help"] == []


def test_exit_codes():
    for code in (0, 1, EXIT_NOT_RUN, EXIT_INTERRUPTED):
        assert re.search(rf"^\|.*\b{code}\b.*\|", TEXT, re.MULTILINE)


def test_json_keys(cli, examples):
    softmax = examples / "softmax"
    ran = json.loads(cli(softmax, "-o", softmax / "expected.npy", "--json").out)
    checked = json.loads(cli(softmax, "--check", "--json").out)
    failed = json.loads(cli(softmax, "-i", "no.npy", "--json").out)
    rows = [ran["arguments"][0], ran["executes"][0], ran["outputs"][0], ran["comparisons"][0]]
    for found in (ran, checked, failed, *rows, failed["error"]):
        for key in found:
            assert f"`{key}`" in TEXT
