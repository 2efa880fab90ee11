"""Every execute of real bundles: bytes as the reference's, one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.conformance.cases import find_cases
from spyre.hw.device.device import Device
from spyre.runtime.cases import Case, read_case
from spyre.runtime.run.session import session_of
from tests.examples import sample
from tests.hw.harness import engine
from tests.runtime.compare.verified import verify_program

MOST_POINTS = 1 << 17
"""Larger executes are left to the conformance run."""


def check_case(case: Case, device: Device) -> int:
    """Number of executes that agree with the reference."""
    session = session_of(device)
    with session.placed(session.describe(case)) as placement:
        placement.fill()
        linked = [placement.link(number) for number in range(len(placement.launches))]
        return sum(verify_program(device, each, MOST_POINTS).verified for each in linked)


@pytest.mark.shared
def test_each_execute_of_the_real_bundles_agrees_with_the_twin(shared_dir: Path):
    """Every other bundle, all of them in the long form; `test_conformance` runs all."""
    cases = sample(find_cases(shared_dir / "bundles"), 2)
    verified = sum(check_case(read_case(directory), engine()) for directory in cases)
    assert verified > 2 * len(cases)
