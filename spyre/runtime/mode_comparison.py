"""Two number modes on one program: differences per execute and per output, and the verdict.

The outputs are those of two whole runs, in which differences add up. The executes are compared
one by one from equal operands (:mod:`.mode_steps`); the verdict rests on these, and on the values
that were expected, where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.hw.numerics import Numerics
from spyre.runtime.mode_steps import ExecuteDifference, ModeComparison, Side, other_leads
from spyre.runtime.subject import Subject, first_executes
from spyre.runtime.ulp import Unit, differences
from spyre.runtime.verify import Index, describe_device_place

Array = npt.NDArray[Any]


class Verdict(StrEnum):
    """The answer to "is this quantisation or a bug?"."""

    EQUAL = "equal"
    QUANTISATION = "quantisation"
    RANGE = "quantisation and range"
    NOT_QUANTISATION = "not quantisation"


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """An output after two whole runs; ULP of its format, at the larger magnitude.

    ``worst_units`` is infinite where one run's worst element is no number. ``place``: core and
    address of the worst element. ``agrees``: whether each mode agrees with what was expected.
    """

    name: str
    data_format: str
    compared: int
    differing: int
    worst_units: float
    mean_units: float
    worst_index: Index | None
    first: float | None
    second: float | None
    place: str
    agrees: tuple[bool, bool] | None = None


@dataclass(frozen=True)
class ModeReport:
    """The whole comparison of modes ``first`` and ``second``."""

    first: Numerics
    second: Numerics
    executes: tuple[ExecuteDifference, ...]
    outputs: tuple[OutputDifference, ...]

    @property
    def verdict(self) -> Verdict:
        """Quantisation, unless an execute differs by more, or both modes miss what is expected."""
        wrong_in_both = any(o.agrees == (False, False) for o in self.outputs)
        if wrong_in_both or not all(e.is_explained for e in self.executes):
            return Verdict.NOT_QUANTISATION
        if any(e.beyond for e in self.executes):
            return Verdict.RANGE
        differing = any(e.differing for e in self.executes) or any(
            o.differing for o in self.outputs
        )
        return Verdict.QUANTISATION if differing else Verdict.EQUAL

    @property
    def exit_code(self) -> int:
        """1 if rounding does not explain the differences."""
        return int(self.verdict is Verdict.NOT_QUANTISATION)


def compare_modes(first: Subject, second: Subject) -> ModeReport:
    """Run one program in the modes of two devices; both subjects hold the same inputs.

    Raises what the kernels raise.
    """
    swapped = other_leads(first.device.numerics, second.device.numerics)
    other = first if swapped else second
    other.launch()
    of_other = other.read_outputs()
    executes: list[ExecuteDifference] = []
    for k, offset in enumerate(first_executes(first)):
        sides = [_side(subject, k) for subject in (first, second)]
        executes += ModeComparison(sides[0], sides[1], offset).run()
    # the leader's own state went through the steps untouched
    of_leader = (second if swapped else first).read_outputs()
    values = (of_other, of_leader) if swapped else (of_leader, of_other)
    outputs = (_output(first, second, values, k) for k in range(len(first.outputs)))
    return ModeReport(
        first.device.numerics, second.device.numerics, tuple(executes), tuple(outputs)
    )


def _side(subject: Subject, k: int) -> Side:
    kernel, launch = subject.launches[k]
    return Side(subject.device, kernel.link(launch))


def _output(
    first: Subject, second: Subject, values: tuple[tuple[Array, ...], tuple[Array, ...]], k: int
) -> OutputDifference:
    output, (a, b) = first.outputs[k], (side[k] for side in values)
    unit = Unit(output.data_format, first.device.numerics, second.device.numerics)
    found = differences(a, b, unit)
    agrees = None
    if output.agrees is not None:
        agrees = (output.agrees(a), output.agrees(b))
    if not a.size:
        return OutputDifference(
            output.name, output.data_format, 0, 0, 0.0, 0.0, None, None, None, "", agrees
        )
    worst = np.unravel_index(int(np.argmax(found.units)), a.shape)
    index = tuple(int(i) for i in worst)
    finite = np.isfinite(found.units)
    return OutputDifference(
        output.name,
        output.data_format,
        a.size,
        int(np.count_nonzero(found.units)),
        float(found.units[worst]),
        float(found.units[finite].sum()) / a.size,
        index,
        float(a[worst]),
        float(b[worst]),
        describe_device_place(output.place, index),
        agrees,
    )
