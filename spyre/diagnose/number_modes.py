"""One program in two number modes: differences per execute and per output, and the verdict.

The outputs are those of two whole runs, in which differences add up. The executes are compared
one by one from equal operands: before each, the memory its operands touch is copied from the
leading device to the other one, 16-bit floats re-encoded where one side stores DL16 and the other
binary16; then both run it and the outputs are compared. So no difference of one execute reaches
the next. The verdict rests on these, and on expected values, where there are any.

The leader is the first mode, but a DL16 side always leads a binary16 one: DL16 numbers are exact
in binary16's range, not the other way round. Operands beyond that range are given to both sides
as binary16 holds them; the leader then runs the execute once more with its own.

Differences are in units of the last place (ULP): the distance of neighbouring numbers of a format
at the larger of the two magnitudes; where two formats are compared, that of the coarser one there.
The rule of a verdict is that of docs/cli.md: each mode's rounding of the result and, for sums of
many terms, the error of rounding the partial sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import prod, sqrt
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import FORMATS, bytes_to_codes, decode_device, encode_device, find_stored_format
from spyre.hw.device import Device
from spyre.hw.linking import LinkedProgram, shape_text
from spyre.hw.numerics import Numerics
from spyre.hw.ops import CARD_FORMS, Family, OpDefinition, decode_constant
from spyre.hw.plan_table import CHUNK, CHUNKED_REDUCTIONS
from spyre.hw.plans import CorePlan
from spyre.runtime.compare import (
    ExecuteView,
    Index,
    MemoryWindow,
    Parts,
    compare,
    describe_location,
    element_coordinates,
    execution_parts,
    operand_window,
    output_elements,
    run_parts,
    stepping_runner,
    writers,
)
from spyre.runtime.run import PlacedRun, is_float

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]

HALF = "SEN169_FP16"


class WorstElement(msgspec.Struct, frozen=True):
    """The element that differs most: difference and explained part (ULP), values, location.

    ``coordinates``: per dim. ``address_bytes``: scratchpads begin at LX_BASE in the simulator's
    memory.
    """

    units: float
    explained_units: float
    first: float
    second: float
    core: int
    loop_indices: tuple[int, ...]
    coordinates: dict[str, int]
    address_bytes: int


_SUMMED = ("runs", "compared", "differing", "units_sum", "unexplained", "beyond")


class ExecuteDifference(msgspec.Struct, frozen=True):
    """Differences of one execute statement in two modes, over all its executions.

    ``compared``: output elements. ``units_sum``: sum of all finite differences in ULP.
    ``unexplained``: elements that differ by more than rounding explains. ``beyond``: elements
    that are too large for binary16. ``adjusted_operands``: operands held numbers beyond
    binary16, which were rounded to binary16 on both sides. ``erratum``: that of cards which one
    of the modes simulates here, of `spyre.hw.numerics.ERRATA`; rounding does not explain it.
    """

    index: int
    sdsc: str
    op: str
    shape: str
    data_format: str
    runs: int = 0
    compared: int = 0
    differing: int = 0
    units_sum: float = 0.0
    unexplained: int = 0
    beyond: int = 0
    adjusted_operands: bool = False
    worst: WorstElement | None = None
    erratum: str = ""

    @property
    def mean_units(self) -> float:
        """Mean difference of all compared elements, in ULP."""
        return self.units_sum / self.compared if self.compared else 0.0

    @property
    def is_explained(self) -> bool:
        """True if rounding, or the range of binary16, explains every element."""
        return self.unexplained == 0

    def plus(self, other: ExecuteDifference) -> ExecuteDifference:
        """Both together; the worse extreme stays."""
        both = [e for e in (self.worst, other.worst) if e is not None]
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED},
            adjusted_operands=self.adjusted_operands or other.adjusted_operands,
            worst=max(both, key=lambda e: (e.units > e.explained_units, e.units), default=None),
        )


class Recoder:
    """16-bit float codes of one mode as codes of another, and as numbers in both, by table.

    ``lossy``: True for numbers that the other mode cannot hold; ``rounded``: codes of the numbers
    that they become there.
    """

    def __init__(self, source: Numerics, target: Numerics) -> None:
        codes = np.arange(1 << 16).astype(np.uint16)
        self.source_values = decode_device(codes, HALF, source.alu_rules)
        self.target_values = decode_device(codes, HALF, target.alu_rules)
        self.needed = (source.mode == "ieee") != (target.mode == "ieee")
        self.codes = codes
        if self.needed:
            self.codes = encode_device(self.source_values, HALF, target.alu_rules)
        back = self.target_values[self.codes]
        self.lossy = np.isfinite(self.source_values) & (back != self.source_values)
        self.rounded = encode_device(back, HALF, source.alu_rules)


def second_leads(first: Numerics, second: Numerics) -> bool:
    """True if the second mode's state is the one that both run from."""
    return first.mode == "ieee" and second.mode != "ieee"


class NumericsComparison(msgspec.Struct, dict=True):
    """Runs a program on devices ``first`` and ``second`` (the modes A and B) step by step.

    It observes the leader's executions and runs the same ones on the other device. ``programs``:
    linked on either device. ``index_offset``: number of the program's first execute statement.
    """

    first: Device
    second: Device
    programs: tuple[LinkedProgram, LinkedProgram]
    index_offset: int = 0
    _differences: dict[int, ExecuteDifference] = msgspec.field(default_factory=dict)
    _saved: list[tuple[MemoryWindow, Array]] = msgspec.field(default_factory=list)
    _adjusted: list[bool] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self._swapped = second_leads(self.first.numerics, self.second.numerics)
        self._lead, self._other = self.first, self.second
        self._lead_linked, other_linked = self.programs
        if self._swapped:
            self._lead, self._other = self.second, self.first
            other_linked, self._lead_linked = self.programs
        self._recoder = Recoder(self._lead.numerics, self._other.numerics)
        self._others = iter(execution_parts(other_linked))
        self._other_parts: Parts = ()

    def run(self) -> tuple[ExecuteDifference, ...]:
        """Run everything; differences per execute statement in the order of the statements."""
        stepping_runner([self])(self._lead, self._lead_linked)
        return tuple(self._differences[static] for static in sorted(self._differences))

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Give the other device the leader's operands."""
        self._other_parts = next(self._others)
        pairs = zip(parts, self._other_parts, strict=True)
        self._adjusted = [self._hand_over(lead, other) for lead, other in pairs]
        # Both sides must start from the same numbers; the leader continues from its own state
        # afterwards, so that numbers beyond binary16 are not lost for later executes.
        self._saved = []
        if any(self._adjusted):
            windows = [operand_window(p, k) for p in parts for k in range(len(p.op.tensors))]
            self._saved = [(window, window.view(device.memory).copy()) for window in windows]
            for part, is_adjusted in zip(parts, self._adjusted, strict=True):
                if is_adjusted:
                    self._adjust_leader(part)

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Run the execution on the other device, compare, and restore the leader's state."""
        run_parts(self._other, self._other_parts)
        for lead, other, adjusted in zip(parts, self._other_parts, self._adjusted, strict=True):
            difference = self._compare(lead, other, adjusted)
            earlier = self._differences.get(lead.static)
            self._differences[lead.static] = (
                difference if earlier is None else earlier.plus(difference)
            )
        if self._saved:
            for window, content in self._saved:
                window.view(device.memory)[...] = content
            run_parts(device, parts)

    def _compare(self, lead: ExecuteView, other: ExecuteView, adjusted: bool) -> ExecuteDifference:
        op = lead.plan.op
        base = ExecuteDifference(
            self.index_offset + lead.static,
            lead.statement.source,
            op.name,
            shape_text(op),
            op.outputs[0].data_format,
            adjusted_operands=adjusted,
            erratum=_erratum(lead.plan.spec, other.plan.spec),
        )
        for k in range(len(op.tensors) - len(op.outputs), len(op.tensors)):
            base = base.plus(self._compare_output(base, lead, other, k))
        return replace(base, runs=int(lead.is_first_part))

    def _hand_over(self, lead: ExecuteView, other: ExecuteView) -> bool:
        """Leader's operand bytes to the other side; True if a number could not be kept."""
        lossy = False
        for k, tensor in enumerate(lead.plan.op.tensors):
            source = operand_window(lead, k).view(self._lead.memory)
            target = operand_window(other, k).view(self._other.memory)
            if self._recoder.needed and tensor.data_format == HALF:
                codes = source.view(np.uint16)
                target.view(np.uint16)[...] = self._recoder.codes[codes]
                lossy |= bool(self._recoder.lossy[codes].any())
            else:
                target[...] = source
        return lossy

    def _adjust_leader(self, lead: ExecuteView) -> None:
        """Round the leader's 16-bit operands to the numbers that the other side can hold."""
        memory = self._lead.memory
        for k, tensor in enumerate(lead.plan.op.tensors):
            if tensor.data_format == HALF:
                codes = operand_window(lead, k).view(memory).view(np.uint16)
                codes[...] = self._recoder.rounded[codes]

    def _compare_output(
        self, base: ExecuteDifference, lead: ExecuteView, other: ExecuteView, k: int
    ) -> ExecuteDifference:
        tensor, op = lead.plan.op.tensors[k], lead.plan.op
        window = operand_window(lead, k)
        other_window = operand_window(other, k)
        raw = (
            np.ascontiguousarray(window.view(self._lead.memory)).reshape(-1),
            np.ascontiguousarray(other_window.view(self._other.memory)).reshape(-1),
        )
        values = self._decoded(raw, tensor.data_format)
        if self._swapped:
            values = values[::-1]
        counted = replace(base, compared=output_elements(op, lead.plan.accesses[k]))
        unequal = (values[0] != values[1]) & ~(np.isnan(values[0]) & np.isnan(values[1]))
        elements = np.flatnonzero(unequal)
        bits = find_stored_format(tensor.data_format).bits
        addresses = window.address(elements * bits // 8)
        core = writers(lead, k, addresses)
        elements, addresses, core = (x[core >= 0] for x in (elements, addresses, core))
        if not elements.size:
            return counted
        unit = UlpSize(tensor.data_format, self.first.numerics, self.second.numerics)
        units, beyond = differences(values[0][elements], values[1][elements], unit)
        inputs = [self._operand_numbers(lead, i) for i in range(len(op.inputs))]
        explained = explained_units(lead.plan, inputs, values, elements, unit)
        wrong = (units > explained) & ~beyond
        # The worst element to show: an unexplained one before all others, then by ULP; numbers
        # beyond binary16 are expected and come last. 1e300 keeps unexplained ones apart in order.
        ranked = np.where(beyond, -1.0, np.where(wrong, np.inf, units))
        ranked = np.where(wrong & np.isfinite(units), 1e300 + units, ranked)
        worst = int(np.argmax(ranked))
        address, position = int(addresses[worst]), int(core[worst])
        return replace(
            counted,
            differing=int(np.count_nonzero(units)),
            units_sum=float(units[np.isfinite(units)].sum()),
            unexplained=int(np.count_nonzero(wrong)),
            beyond=int(np.count_nonzero(beyond)),
            worst=WorstElement(
                float(units[worst]),
                float("inf") if beyond[worst] else float(explained[worst]),
                float(values[0][elements[worst]]),
                float(values[1][elements[worst]]),
                op.cores[position],
                lead.loop_indices,
                element_coordinates(lead, k, address, position),
                address,
            ),
        )

    def _operand_numbers(self, step: ExecuteView, operand: int) -> Array:
        window = operand_window(step, operand)
        raw = np.ascontiguousarray(window.view(self._lead.memory)).reshape(-1)
        return self._decoded((raw, raw[:0]), step.plan.op.tensors[operand].data_format)[0]

    def _decoded(self, raw: tuple[Array, Array], data_format: str) -> tuple[Array, Array]:
        """Numbers of the leader's and of the other side's bytes."""
        codes = [bytes_to_codes(r, data_format) for r in raw]
        if data_format == HALF:
            return self._recoder.source_values[codes[0]], self._recoder.target_values[codes[1]]
        return decode_device(codes[0], data_format), decode_device(codes[1], data_format)


def _erratum(*rows: OpDefinition) -> str:
    """The erratum of cards that one of the two modes simulates in this operation, or ""."""
    found = [name for name, row in CARD_FORMS.items() if [r == row for r in rows].count(True) == 1]
    return "".join(found)


class Verdict(StrEnum):
    """The answer to "is this quantisation or a bug?"."""

    EQUAL = "equal"
    QUANTISATION = "quantisation"
    RANGE = "quantisation and range"
    NOT_QUANTISATION = "not quantisation"


class OutputDifference(msgspec.Struct, frozen=True):
    """An output after two whole runs; ULP of its format, at the larger magnitude.

    ``worst_units`` is infinite if the worst element of a run is not a number. ``place``: core and
    address of the worst element. ``agrees``: whether each mode agrees with the expected output.
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
    agrees: tuple[bool, ...] | None = None


class NumericsReport(msgspec.Struct, frozen=True):
    """The whole comparison of modes ``first`` and ``second``."""

    first: Numerics
    second: Numerics
    executes: tuple[ExecuteDifference, ...]
    outputs: tuple[OutputDifference, ...]

    @property
    def verdict(self) -> Verdict:
        """Quantisation, unless an execute differs by more or both modes miss an expected output."""
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


def compare_numerics(first: PlacedRun, second: PlacedRun) -> NumericsReport:
    """Run a program, placed and filled alike, on two devices. Errors as of running the kernels."""
    modes = first.device.numerics, second.device.numerics
    swapped = second_leads(*modes)
    lead, other = (second, first) if swapped else (first, second)
    for loaded, launch in other.launches:
        loaded.kernel.launch(launch)
    of_other = read_numbers(other)
    executes: list[ExecuteDifference] = []
    for number, described in enumerate(first.run.launches):
        programs = first.link(number), second.link(number)
        comparison = NumericsComparison(
            first.device, second.device, programs, described.label.first_execute
        )
        executes += comparison.run()
    # The comparison has restored the leader's state after every execute.
    of_lead = read_numbers(lead)
    values = (of_other, of_lead) if swapped else (of_lead, of_other)
    outputs = (_output_difference(first, modes, values, k) for k in range(len(of_lead)))
    return NumericsReport(*modes, tuple(executes), tuple(outputs))


def read_numbers(placement: PlacedRun) -> tuple[Array, ...]:
    """The outputs, floats as float32, which holds every float of the device exactly."""
    return tuple(
        placement.read(output, "float32" if is_float(argument) else None).to_values()
        for output, argument in zip(
            placement.run.outputs, placement.run.output_arguments, strict=True
        )
    )


def _output_difference(
    placement: PlacedRun,
    modes: tuple[Numerics, Numerics],
    values: tuple[tuple[Array, ...], tuple[Array, ...]],
    k: int,
) -> OutputDifference:
    output, (a, b) = placement.run.outputs[k], (side[k] for side in values)
    data_format = placement.run.output_arguments[k].layout.device_dtype
    units, _ = differences(a, b, UlpSize(data_format, *modes))
    agrees = None
    if output.expected is not None:
        expected = output.expected()
        agrees = tuple(compare(side, expected, output.tolerance).ok for side in (a, b))
    if not a.size:
        return OutputDifference(
            output.buffer, data_format, 0, 0, 0.0, 0.0, None, None, None, "", agrees
        )
    worst = np.unravel_index(int(np.argmax(units)), a.shape)
    index = tuple(int(i) for i in worst)
    finite = np.isfinite(units)
    return OutputDifference(
        output.buffer,
        data_format,
        a.size,
        int(np.count_nonzero(units)),
        float(units[worst]),
        float(units[finite].sum()) / a.size,
        index,
        float(a[worst]),
        float(b[worst]),
        describe_location(placement.location(output), index),
        agrees,
    )


# --- rounding ---------------------------------------------------------------------------------

DL16_SMALLEST = 2.0**-31 * (1 + 2.0**-9)
HALF_BEYOND = 65472.0
"""Array of at least this magnitude may round to binary16's infinity: DL16's last one below."""


class UlpSize(msgspec.Struct, frozen=True):
    """The size of one ULP for values stored as ``data_format`` in two number modes."""

    data_format: str
    first: Numerics
    second: Numerics

    @property
    def holds_ieee(self) -> bool:
        """True if one side holds 16-bit floats as binary16, and the other as DL16."""
        modes = {self.first.mode == "ieee", self.second.mode == "ieee"}
        return self.data_format == HALF and len(modes) == 2

    def size(self, magnitude: Float64Array) -> Float64Array:
        """ULP at finite magnitudes; 1 for integers and booleans."""
        if not find_stored_format(self.data_format).is_float:
            return np.ones_like(magnitude)
        if self.data_format != HALF:
            return _spacing(magnitude, self.data_format)
        sides = [n.mode == "ieee" for n in (self.first, self.second)]
        result = np.zeros_like(magnitude)
        if any(sides):
            result = _spacing(magnitude, "IEEE_FP16")
        if not all(sides):
            tiny = np.where(magnitude <= DL16_SMALLEST, DL16_SMALLEST, 0.0)
            result = np.maximum(np.maximum(result, _spacing(magnitude, self.data_format)), tiny)
        return result

    def half_units(self, numerics: Numerics) -> float:
        """Units one side's rounding may be off: half, or one where it cuts off."""
        cuts = numerics.mode != "ieee" and numerics.alu_rounding == "trunc"
        return 1.0 if cuts and self.data_format == HALF else 0.5


def _spacing(magnitude: Float64Array, data_format: str) -> Float64Array:
    """Distance of neighbouring numbers of a floating format at these magnitudes."""
    fraction_bits, lowest = FORMATS[data_format].precision
    _, exponent = np.frexp(magnitude)
    exponent = np.where(magnitude > 0, np.maximum(exponent - 1, lowest), lowest)
    return np.asarray(np.ldexp(1.0, exponent - fraction_bits), np.float64)


def differences(
    first: Array, second: Array, unit: UlpSize
) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
    """|a − b| of decoded values of equal shape in ULP, and True where a side is out of range.

    The difference is 0 where both are the same infinity or both NaN (or DL16's NINF against
    either), infinite where only one side is a number. Out of range: one side is infinite because
    binary16 cannot hold the other side's number.
    """
    a, b = first.astype(np.float64), second.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
    if unit.holds_ieee:
        same |= (np.isnan(a) & np.isinf(b)) | (np.isinf(a) & np.isnan(b))
    magnitude = np.where(finite, np.maximum(np.abs(a), np.abs(b)), 1.0)
    absolute = np.full(a.shape, np.inf)
    np.subtract(a, b, out=absolute, where=finite)
    absolute = np.where(same, 0.0, np.abs(absolute))
    one_infinite = np.isinf(a) ^ np.isinf(b)
    number = np.where(np.isinf(a), b, a)
    with np.errstate(invalid="ignore"):
        beyond = one_infinite & (np.abs(number) >= HALF_BEYOND) & unit.holds_ieee
    return absolute / unit.size(magnitude), beyond


_SELECTING = ("max", "min", "absmax")
"""Reductions whose result is one of the elements."""


def explained_units(
    plan: CorePlan,
    inputs: Sequence[Array],
    values: tuple[Array, Array],
    at: npt.NDArray[np.int64],
    unit: UlpSize,
) -> Float64Array:
    """ULP that rounding explains, for the elements ``at`` of the two results ``values``.

    ``inputs``: numbers of the input operands, in any order.
    """
    sides = (unit.first, unit.second)
    pair = [v[at].astype(np.float64) for v in values]
    magnitude = np.maximum(*(np.where(np.isfinite(p), np.abs(p), 0.0) for p in pair))
    ulp = unit.size(magnitude)
    explained = np.full(ulp.shape, sum(unit.half_units(side) for side in sides))
    terms = _terms(plan)
    if terms == 1:
        return explained
    # Partial sums are larger than the result where terms cancel; their size is estimated by the
    # largest result and by what random signs would leave.
    partial = max(*(_largest(v) for v in values), _typical_sum(plan, inputs, terms))
    explained += terms * 2.0**-24 * partial / ulp
    # Operations that accumulate in DL16 in the chunked number mode.
    in_chunks = plan.spec.family is Family.MATMUL or plan.spec.kernel_op in CHUNKED_REDUCTIONS
    if unit.data_format == HALF and in_chunks:
        rounded = sum(_chunk_units(side, terms) for side in sides)
        explained += rounded * unit.size(np.array([partial]))[0] / ulp
    return explained


def _typical_sum(plan: CorePlan, inputs: Sequence[Array], terms: int) -> float:
    """Four times the expected sum of ``terms`` products of the inputs' RMS with random signs."""
    op, spec = plan.op, plan.spec
    typical = 4 * sqrt(terms)
    if spec.family is Family.REDUCTION and spec.constants:
        name = spec.constants[0]
        typical *= abs(decode_constant(op.constants[name], op.constant_formats[name]))
    for numbers in inputs:
        used = numbers[np.isfinite(numbers) & (numbers != 0)].astype(np.float64)
        typical *= sqrt(float(np.mean(used**2))) if used.size else 0.0
    return typical


def _largest(values: Array) -> float:
    numbers = np.abs(values.astype(np.float64))
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))


def _chunk_units(numerics: Numerics, terms: int) -> float:
    """ULP, at the size of partial sums, that accumulating in DL16 may cost; 0 in float32."""
    if not numerics.chunked:
        return 0.0
    within, chunks = min(terms, CHUNK), -(-terms // CHUNK)
    # Cutting off errs in one direction every time; rounding errors add up like a random walk.
    if numerics.alu_rounding == "trunc":
        return float(within + chunks)
    return min(2 * (sqrt(within) + sqrt(chunks)), (within + chunks) / 2)


def _terms(plan: CorePlan) -> int:
    """Elements of the iteration space that are combined into one; 1 where one is selected."""
    op = plan.op
    if plan.spec.kernel_op in _SELECTING or plan.spec.family is Family.TOPK:
        return 1
    return prod(op.extents[dim] for dim in op.reduced_dims)
