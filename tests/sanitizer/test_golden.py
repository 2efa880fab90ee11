"""Every check on a program with one defect: the whole text of the findings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spyre.errors import Severity
from spyre.hw.device.device import Device
from spyre.runtime.run.session import run
from tests.sanitizer.programs import RIGHT, WRONG

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(sanitize=True)


def found_text(device: Device, directory: Path) -> str:
    result = run(directory, device=device)
    text = "".join(f"{finding.to_finding()}\n" for finding in result.sanitizer)
    return text.replace(f"{directory}/", "")


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str, device: Device, tmp_path: Path, golden: Callable[[Path, str], None]):
    golden(GOLDEN / f"{name}.txt", found_text(device, WRONG[name](tmp_path / name)))


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str, device: Device, tmp_path: Path):
    assert found_text(device, RIGHT[name](tmp_path / name)) == ""


@pytest.mark.parametrize("name", WRONG)
def test_findings_are_part_of_the_result(name: str, device: Device, tmp_path: Path):
    result = run(WRONG[name](tmp_path / name), device=device)
    texts = [str(finding) for finding in result.findings]
    assert all(str(finding.to_finding()) in texts for finding in result.sanitizer)
    order = [finding.severity is Severity.WARNING for finding in result.sanitizer]
    assert order == sorted(order)
