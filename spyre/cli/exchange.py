"""Findings in the forms that other tools read: SARIF 2.1.0 for code review, JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import spyre
from spyre.codes import diagnostic_codes
from spyre.errors import (
    DeviceLocation,
    Finding,
    JsonLocation,
    Location,
    Severity,
    SourceLocation,
)

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_object(findings: Sequence[Finding]) -> dict[str, Any]:
    """One run of this tool: a result per finding, and a rule per code that occurs."""
    codes = sorted({finding.code for finding in findings})
    rules = [diagnostic_codes()[code] for code in codes]
    driver = {
        "name": "spyre",
        "version": spyre.__version__,
        "rules": [
            {
                "id": rule.code,
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": rule.cause},
                "help": {"text": rule.fix},
            }
            for rule in rules
        ],
    }
    results = [
        {
            "ruleId": finding.code,
            "ruleIndex": codes.index(finding.code),
            "level": finding.severity.value,
            "message": {"text": _text(finding)},
            "locations": [] if finding.location is None else [_place(finding.location)],
        }
        for finding in findings
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _text(finding: Finding) -> str:
    details = [("expected", finding.expected), ("found", finding.found), ("hint", finding.hint)]
    return "\n".join([finding.message, *(f"{label}: {text}" for label, text in details if text)])


def _place(location: Location) -> dict[str, Any]:
    """A SARIF location: the file, and the object that the file describes."""
    match location:
        case SourceLocation(file, line, column):
            return _in_file(file, {"region": {"startLine": line, "startColumn": column}})
        case JsonLocation(file, path):
            return _in_file(file) | {"logicalLocations": [{"fullyQualifiedName": path}]}
        case DeviceLocation(sdsc, source=source):
            where = _in_file(sdsc) if source is None else _place(source)
            return where | {"logicalLocations": [{"fullyQualifiedName": str(location)}]}


def _in_file(file: str, region: dict[str, Any] | None = None) -> dict[str, Any]:
    path = PurePath(file)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    return {"physicalLocation": {"artifactLocation": {"uri": uri}} | (region or {})}


def junit_text(name: str, findings: Sequence[Finding]) -> str:
    """JUnit XML for the findings on ``name``: a test case per finding, failed if it is an error.

    Without findings, one test case that passed.
    """
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    suite = ElementTree.Element(
        "testsuite", name=name, tests=str(len(findings) or 1), failures=str(len(errors))
    )
    for finding in findings:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=name,
            name=f"{finding.code} {finding.location or ''}".strip(),
        )
        if finding.severity is Severity.ERROR:
            failure = ElementTree.SubElement(case, "failure", message=finding.message)
            failure.text = str(finding)
        else:
            ElementTree.SubElement(case, "system-out").text = str(finding)
    if not findings:
        ElementTree.SubElement(suite, "testcase", classname=name, name="no findings")
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=False)
