"""Verification of a program that is linked already."""

from __future__ import annotations

from spyre.hw.device.device import Device
from spyre.hw.linking import LinkedProgram
from spyre.runtime.compare.executes import (
    DEFAULT_VERIFY_POINTS,
    ReferenceCheck,
    Verification,
    stepping_runner,
)


def verify_program(
    device: Device, linked: LinkedProgram, limit_points: int = DEFAULT_VERIFY_POINTS
) -> Verification:
    check = ReferenceCheck(device, limit_points)
    stepping_runner([check])(device, linked)
    return check.verification
