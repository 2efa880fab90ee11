"""``--verify``: every execute on the engine and on the slow reference, from equal memory.

The reference is :mod:`spyre.hw.reference`, which has a memory beside the device's. Before an
execute the operands are copied into it, so that rounding differences do not accumulate; afterwards
the outputs must agree (:mod:`spyre.hw.reference.agreement`) and the inputs must be unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import Mode, find_stored_format
from spyre.errors import DeviceLocation, Finding, MismatchError, Severity
from spyre.hw.device import Device
from spyre.hw.memory import DeviceMemory
from spyre.hw.reference import (
    NOT_COMPARABLE,
    Execution,
    agreement_of,
    decoded,
    run_reference,
    sum_noise,
    ulp_distance,
)
from spyre.mlir.operation import Operation
from spyre.runtime.compare.executes import ByteRange, ExecuteView, Parts, find_point

Bytes = npt.NDArray[np.uint8]

DEFAULT_VERIFY_POINTS = 1 << 23
"""Points of the iteration space up to which an execute is verified; the reference is slow."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Executes that agreed, and a warning per execute statement too large to be verified."""

    verified: int
    not_verified: int = 0
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        text = f"{self.verified} of {self.verified + self.not_verified} executes agree"
        text += " with the reference implementation"
        return f"{text}, {self.not_verified} were too large" if self.not_verified else text


@dataclass
class ReferenceCheck:
    """Runs every execute on the reference implementation too, and compares.

    ``limit_points``: executes with a larger iteration space are not verified. MismatchError SPY620
    after the first execute that differs.
    """

    device: Device
    limit_points: int = DEFAULT_VERIFY_POINTS
    verified: int = 0
    _skipped: dict[tuple[int, int], tuple[ExecuteView, int]] = field(default_factory=dict)
    _memory: DeviceMemory = field(default_factory=DeviceMemory)

    @property
    def verification(self) -> Verification:
        """Counts of all executions so far, and a warning per statement that was not verified."""
        findings = tuple(self._not_verified(*skipped) for skipped in self._skipped.values())
        count = sum(count for _, count in self._skipped.values())
        return Verification(self.verified, count, findings)

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Copy the operands into the memory of the reference implementation."""
        if self._is_verified(parts):
            for window in (window for part in parts for window in part.ranges):
                self._memory.write(window.address_bytes, _bytes(device.memory, window))

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Run the reference implementation, and compare all operands."""
        if not self._is_verified(parts):
            key = id(parts[0].linked), parts[0].static
            self._skipped[key] = parts[0], self._skipped.get(key, (parts[0], 0))[1] + 1
            return
        for part in parts:
            run_reference(part.op, self._memory, part.starts, device.numerics, part.arrangements)
        for part in parts:
            self._compare_output(part)
        for part in parts:
            self._compare_rest(part)
        self.verified += 1

    def _is_verified(self, parts: Parts) -> bool:
        return all(_points(part.op) <= self.limit_points for part in parts)

    def _compare_output(self, step: ExecuteView) -> None:
        for window in _windows(step, outputs=True):
            found, expected = (_bytes(m, window) for m in (self.device.memory, self._memory))
            if np.array_equal(found, expected):
                continue
            wrong = self._wrong_elements(step, window, found, expected)
            if wrong.size:
                raise self._mismatch(step, window, wrong, found, expected)
            # Within the allowance: the reference goes on with the engine's bits, so that the
            # comparison of everything else can be exact.
            self._memory.write(window.address_bytes, found)

    def _wrong_elements(
        self, step: ExecuteView, window: ByteRange, found: Bytes, expected: Bytes
    ) -> npt.NDArray[np.int64]:
        """Distance in ulp of every element beyond the allowance, 0 elsewhere; empty if none is."""
        stored = find_stored_format(step.op.tensors[window.operand].data_format)
        allowed = agreement_of(step.plan.spec.family)
        mode = self.device.numerics.mode
        distance = ulp_distance(found, expected, stored, mode)
        wrong = distance > allowed.ulps_of(stored)
        # Sums in another order differ by more than ulps where terms cancel: there the bound is
        # the rounding noise of the terms.
        if wrong.any() and allowed.sums and stored.is_float:
            noise = sum_noise(step.op, self._inputs(step), mode)
            sides = (decoded(side, stored.name, mode) for side in (found, expected))
            with np.errstate(invalid="ignore"):
                wrong &= ~(np.abs(np.subtract(*sides, dtype=np.float64)) <= noise)
        return np.where(wrong, distance, 0) if wrong.any() else np.zeros(0, np.int64)

    def _inputs(self, step: ExecuteView) -> list[list[Bytes]]:
        """What the cores may read of every input."""
        return [
            [_bytes(self._memory, w) for w in step.ranges if w.operand == k]
            for k in range(len(step.op.inputs))
        ]

    def _mismatch(
        self,
        step: ExecuteView,
        window: ByteRange,
        distance: npt.NDArray[np.int64],
        found: Bytes,
        expected: Bytes,
    ) -> MismatchError:
        tensor = step.op.tensors[window.operand]
        worst = int(np.argmax(distance))
        element_bytes = found.size // distance.size
        element = slice(worst * element_bytes, (worst + 1) * element_bytes)
        address = window.address_bytes + element.start
        execution = Execution(
            step.op, self._memory, step.starts, self.device.numerics, step.arrangements
        )
        core, coordinate = find_point(execution, address, window.core)
        shown = ", ".join(f"{dim} {index}" for dim, index in coordinate.items())
        ulps = int(distance[worst])
        far = "no number" if ulps >= NOT_COMPARABLE else f"{ulps} ulp away"
        stored = find_stored_format(tensor.data_format)
        allowed = agreement_of(step.plan.spec.family).ulps_of(stored)
        mode = self.device.numerics.mode
        return MismatchError(
            "SPY620",
            f"{step.op.name}: the engine differs from the reference implementation"
            f"{f' at {shown}' if shown else ''}",
            step.location(window.operand, core, address),
            expected=f"{_number(expected[element], tensor.data_format, mode)} within {allowed} ulp",
            found=f"{_number(found[element], tensor.data_format, mode)}, {far}; "
            f"{np.count_nonzero(distance)} elements differ",
        )

    def _compare_rest(self, step: ExecuteView) -> None:
        """Inputs must be as they were; the output's own bytes are equal by now."""
        for window in _windows(step, outputs=False):
            found, expected = (_bytes(m, window) for m in (self.device.memory, self._memory))
            different = np.flatnonzero(found != expected)
            if different.size:
                first = int(different[0])
                raise MismatchError(
                    "SPY620",
                    f"{step.op.name}: the engine changed an input",
                    step.location(window.operand, window.core, window.address_bytes + first),
                    expected=f"byte {expected[first]:#04x}",
                    found=f"byte {found[first]:#04x}; {different.size} bytes differ",
                )

    def _not_verified(self, step: ExecuteView, count: int) -> Finding:
        op = step.linked.plans[step.static][0].op
        times = "" if count == 1 else f" ({count} times)"
        return Finding(
            "SPY621",
            Severity.WARNING,
            f"{op.name} was not verified{times}",
            DeviceLocation(op.file, step.static, source=step.statement.location),
            expected=f"at most {self.limit_points} points",
            found=f"{_points(op)} points",
            hint=f"--verify-points {_points(op)} verifies it",
        )


def _points(op: Operation) -> int:
    """Points of the iteration space."""
    return prod(op.extents.values())


def _bytes(memory: DeviceMemory, window: ByteRange) -> Bytes:
    return memory.view(window.address_bytes, window.size_bytes)


def _windows(step: ExecuteView, outputs: bool) -> Iterator[ByteRange]:
    first = len(step.op.tensors) - len(step.op.outputs)
    return (w for w in step.ranges if (w.operand >= first) == outputs)


def _number(content: Bytes, data_format: str, mode: Mode) -> str:
    """A number and its code: ``0.5 (0x3c00)``."""
    code = int.from_bytes(content.tobytes(), "little")
    value: Any = decoded(content.copy(), data_format, mode).item()
    text = f"{value:.8g}" if isinstance(value, float) else str(value)
    return f"{text} ({code:#0{2 + 2 * content.size}x})"
