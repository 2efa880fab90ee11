"""Cases: findings over several kernels, numbered as the table of executes is; faults carry them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spyre.cli.run import main
from spyre.errors import DeviceFault
from spyre.hw.device.device import Device
from spyre.runtime.cases import read_case
from spyre.runtime.run.session import run
from tests.runtime.cases.test_case import buffer, write_case
from tests.sanitizer.test_sanitizer import too_far


def change(directory: Path, **launch_arguments: list[str]) -> None:
    """Replace the arguments of launches ``k0``, ``k1``; all buffers but x are temporaries."""
    file = directory / "case.json"
    spec: dict[str, Any] = json.loads(file.read_text())
    spec["buffers"]["never"] = buffer("temp")
    for launch in spec["launches"]:
        launch["args"] = launch_arguments.get(launch["bundle"], launch["args"])
    file.write_text(json.dumps(spec))


def test_nothing_is_found(tmp_path: Path):
    done = run(read_case(write_case(tmp_path)), device=Device(sanitize=True, poison=True))
    assert done.ok
    assert done.sanitizer == ()


def test_executes_are_numbered_over_the_case(tmp_path: Path):
    write_case(tmp_path)
    change(tmp_path, k1=["never", "y"])
    (found,) = run(read_case(tmp_path), device=Device(sanitize=True)).sanitizer
    assert (found.code, found.sdsc, found.execute) == ("SPY710", "k1/sdsc_0.json", 1)


def test_an_output_no_kernel_writes(tmp_path: Path):
    write_case(tmp_path)
    change(tmp_path, k1=["t", "never"])
    (found,) = run(read_case(tmp_path), device=Device(sanitize=True)).sanitizer
    assert (found.code, found.tensor) == ("SPY720", "y")


def test_a_fault_carries_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_case(tmp_path)
    change(tmp_path, k0=["never", "t"])
    shutil.rmtree(tmp_path / "k1")
    too_far(tmp_path / "k1")
    device = Device(sanitize=True)
    with pytest.raises(DeviceFault, match="SPY411") as caught:
        run(read_case(tmp_path), device=device)
    assert [finding.code for finding in caught.value.observed] == ["SPY710"]
    assert device.sanitizer is not None
    assert device.sanitizer.take() == ()
    assert main([str(tmp_path), "--sanitize"]) == 1
    printed = capsys.readouterr().err
    assert printed.index("SPY710") < printed.index("SPY411")
    assert main([str(tmp_path), "--sanitize", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    codes = [finding["code"] for finding in findings]
    assert codes[0] == "SPY411"
    assert "SPY710" in codes
