"""Every execute of real bundles: bytes as the reference's, one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.conformance.cases import find_cases
from spyre.hw.device.device import Device
from spyre.mlir.bundle import load_bundle
from spyre.runtime.cases.case import Case, read_case
from spyre.runtime.compare.reference_check import ReferenceCheck
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.run.replay import bind_launch, place_buffers
from tests.hw.harness import engine

MOST_POINTS = 1 << 17
"""Larger executes are left to the conformance run."""


def check_case(case: Case, device: Device) -> int:
    """Number of executes that agree with the reference."""
    device.reset()
    placed = place_buffers(case, device)
    check = ReferenceCheck(device, MOST_POINTS)
    verified = 0
    for launch in case.spec.launches:
        kernel = Kernel(load_bundle(case.directory / launch.bundle), device)
        bound = bind_launch(launch, placed)
        verified += check.run(kernel.link(bound)).verified
    return verified


@pytest.mark.shared
def test_each_execute_of_the_real_bundles_agrees_with_the_twin(shared_dir: Path):
    cases = find_cases(shared_dir / "bundles")
    verified = sum(check_case(read_case(directory), engine()) for directory in cases)
    assert verified > 2 * len(cases)
