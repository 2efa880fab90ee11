"""Sanitizer findings of a run: what the device collected, and outputs that stayed uncovered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spyre.errors import SpyreError
from spyre.hw.counters import ExecuteLabels
from spyre.hw.device import Device
from spyre.hw.memory import DeviceTensor
from spyre.layout import occupied_sticks, transfer_geometry

if TYPE_CHECKING:
    from spyre.hw.sanitizer import ExpectedOutput, SanitizerFinding


def label_launch(device: Device, first_execute: int, directory: str) -> None:
    """Number the executes of the next launch from ``first_execute`` on, in findings."""
    if device.sanitizer is not None:
        device.sanitizer.label = ExecuteLabels(first_execute, directory)


def next_record(device: Device) -> int:
    """Record of the next thing that writes; 0 without sanitizer."""
    return device.sanitizer.log.next_record if device.sanitizer is not None else 0


@contextmanager
def observed(device: Device) -> Iterator[None]:
    """A SpyreError that leaves this context carries what the sanitizer has found so far."""
    try:
        yield
    except SpyreError as error:
        if device.sanitizer is not None:
            findings = (finding.to_finding() for finding in device.sanitizer.take())
            error.observed = (*error.observed, *findings)
        raise


def take_findings(
    device: Device, outputs: Iterable[ExpectedOutput], first_record: int
) -> tuple[SanitizerFinding, ...]:
    """All findings since the last call, those of ``outputs`` included.

    ``first_record``: `next_record` before the first launch of the run.
    """
    sanitizer = device.sanitizer
    if sanitizer is None:
        return ()
    from spyre.hw.sanitizer import Check, check_cover

    if Check.COVER in sanitizer.checks:
        for expected in outputs:
            uncovered = check_cover(expected, sanitizer.shadow, sanitizer.log, first_record)
            sanitizer.add(uncovered)
    return sanitizer.take()


def whole_output(tensor: DeviceTensor) -> ExpectedOutput:
    """An output all of whose elements count."""
    from spyre.hw.sanitizer import ExpectedOutput

    geometry = transfer_geometry(tensor.layout, tensor.sizes, tensor.strides)
    return ExpectedOutput(tensor, occupied_sticks(geometry))
