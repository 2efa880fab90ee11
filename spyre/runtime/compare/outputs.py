"""Comparison of outputs with expected values, and reports on the element that differs most.

`compare` gives the numbers and `format_comparison` the report. With the output's layout the report
names the worst element's location on the card, and `last_writer` finds the execute, core and loop
indices that last wrote it. It needs only the linked program and the address rule of SDSC reference
§5.2. Tolerances: runtime reference §5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from operator import mul
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from spyre.dtypes import FORMATS, canonical_dtype_name
from spyre.errors import MismatchError, SpyreError
from spyre.hw.access import covers
from spyre.hw.linking import LinkedProgram
from spyre.hw.plans import LinkedPart
from spyre.layout import (
    DevicePosition,
    SpyreTensorLayout,
    device_coordinate,
    host_coordinate_of_offset,
)
from spyre.mlir.operation import Component, Indirection
from spyre.mlir.program import Execute

Index = tuple[int, ...]
Extreme = tuple[float, Index]
"""A greatest difference and the index where it is."""


class Tolerance(msgspec.Struct, frozen=True):
    """An element is right if |found − expected| ≤ ``atol`` + ``rtol``·|expected|.

    Infinities must agree in sign, and NaN equals NaN; with ``merged_nan`` an expected NaN is also
    met by ±inf, the only thing DL16 can store for it.
    """

    rtol: float = 0.0
    atol: float = 0.0
    merged_nan: bool = False


EXACT = Tolerance()
"""Equal numbers; zeros of either sign are equal, and so are NaNs."""

_BY_FORMAT = {
    row.name: Tolerance(*row.tolerance, merged_nan=row.merges_nan)
    for row in FORMATS.values()
    if row.tolerance is not None
}

_TORCH_TOLERANCES = {
    "float16": Tolerance(1e-3, 1e-5),
    "bfloat16": Tolerance(1.6e-2, 1e-5),
    "float32": Tolerance(1.3e-6, 1e-5),
    "float64": Tolerance(1e-7, 1e-7),
}


def default_tolerance(dtype_name: str, device_dtype: str | None = None) -> Tolerance:
    """Tolerance for an output of torch dtype ``dtype_name`` stored as ``device_dtype``.

    Floats get the tolerance of the device format, or torch.testing's default where that is wider
    (bfloat16) or the format has none; integers and booleans must be equal.
    """
    torch_default = _TORCH_TOLERANCES.get(canonical_dtype_name(dtype_name), EXACT)
    stored = _BY_FORMAT.get(device_dtype or "")
    if stored is None or torch_default is EXACT:
        return torch_default
    return msgspec.structs.replace(stored, rtol=max(torch_default.rtol, stored.rtol))


class Comparison(msgspec.Struct, frozen=True):
    """Outcome of a comparison of ``total`` elements, ``mismatched`` of them wrong.

    ``max_abs`` and ``max_rel``: greatest difference with its index, over all elements (relative
    to |expected|; infinite where one side is not finite or expected is 0). ``worst_index``: the
    element furthest beyond its tolerance, with its two values. None when there are no elements.
    """

    mismatched: int
    total: int
    max_abs: Extreme | None
    max_rel: Extreme | None
    worst_index: Index | None
    expected_worst: float | int | bool | None
    found_worst: float | int | bool | None
    tolerance: Tolerance

    @property
    def ok(self) -> bool:
        """True if every element is within the tolerance."""
        return self.mismatched == 0


def require_equal_shapes(
    found: tuple[int, ...], expected: tuple[int, ...], kind: type[SpyreError] = MismatchError
) -> None:
    """SPY602, of ``kind``, when the shapes of an output and its expected value differ."""
    if found != expected:
        raise kind(
            "SPY602",
            "found and expected values differ in shape",
            expected=str(expected),
            found=str(found),
        )


def compare(found: NDArray[Any], expected: NDArray[Any], tolerance: Tolerance) -> Comparison:
    """Compare two arrays of equal shape, floats as float64, integers and booleans exactly.

    MismatchError SPY602 when the shapes differ.
    """
    require_equal_shapes(found.shape, expected.shape)
    if found.dtype.kind == "f" or expected.dtype.kind == "f":
        difference, allowed = _float_differences(found, expected, tolerance)
    else:
        difference, allowed = _integer_differences(found, expected, tolerance)
    return _summarise(found, expected, difference, allowed, tolerance)


def _float_differences(
    found: NDArray[Any], expected: NDArray[Any], tolerance: Tolerance
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """|found − expected| (0 where the two agree though not finite, else inf) and the allowance."""
    found64, expected64 = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(found64 - expected64)
        allowed = tolerance.atol + tolerance.rtol * np.abs(expected64)
    # DL16 stores NaN as infinity, so with `merged_nan` an expected NaN may come back as one.
    special = ~(np.isfinite(found64) & np.isfinite(expected64))
    agree = found64 == expected64
    expected_nan = np.isnan(expected64)
    agree |= expected_nan & np.isnan(found64)
    agree |= expected_nan & np.isinf(found64) & tolerance.merged_nan
    difference = np.where(special, np.where(agree, 0.0, inf), difference)
    return difference, np.where(special, 0.0, allowed)


def _integer_differences(
    found: NDArray[Any], expected: NDArray[Any], tolerance: Tolerance
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Differences of integers and booleans; never 0 for unequal ones, however large."""
    as_float = found.astype(np.float64) - expected.astype(np.float64)
    # float64 merges neighbouring integers beyond 2^53: unequal ones are at least 1 apart.
    difference = np.where(found == expected, 0.0, np.maximum(np.abs(as_float), 1.0))
    allowed = tolerance.atol + tolerance.rtol * np.abs(expected.astype(np.float64))
    return difference, allowed


def _summarise(
    found: NDArray[Any],
    expected: NDArray[Any],
    difference: NDArray[np.float64],
    allowed: NDArray[np.float64],
    tolerance: Tolerance,
) -> Comparison:
    wrong = difference > allowed
    if not difference.size:
        return Comparison(0, 0, None, None, None, None, None, tolerance)
    with np.errstate(invalid="ignore"):
        excess = np.where(wrong, difference - allowed, -inf)
    magnitude = np.abs(expected.astype(np.float64))
    relative = np.full(difference.shape, inf)
    np.divide(difference, magnitude, out=relative, where=(magnitude > 0) & np.isfinite(magnitude))
    relative[difference == 0] = 0.0
    worst = _argmax(excess if wrong.any() else difference)
    return Comparison(
        int(np.count_nonzero(wrong)),
        difference.size,
        _extreme(difference),
        _extreme(relative),
        worst,
        expected[worst].item(),
        found[worst].item(),
        tolerance,
    )


def _argmax(values: NDArray[np.float64]) -> Index:
    position = np.unravel_index(int(np.argmax(values)), values.shape)
    return tuple(int(i) for i in position)


def _extreme(values: NDArray[np.float64]) -> Extreme:
    index = _argmax(values)
    return float(values[index]), index


class StickWriter(msgspec.Struct, frozen=True):
    """Core and tile (loop indices, outermost first) that computed a device position.

    ``core`` None: no core writes it. ``execute``: index of the execute statement that wrote it
    last; ``operation``: its name.
    """

    core: int | None
    tile: Index = ()
    execute: int | None = None
    operation: str = ""


WriterOfStick = Callable[[Index], StickWriter | None]
"""From a stick's device coordinates (all dims but the last) to its last writer, if known."""


class OutputLocation(msgspec.Struct, frozen=True):
    """Layout and address of an output on the card, for reports.

    ``dma_sizes``/``dma_strides`` in elements: the host extents the layout was made for.
    ``base_address``: byte address of the tensor. ``view_strides``/``view_offset``: strides and
    storage offset (elements) of the compared values, a view of the tensor's storage.
    """

    layout: SpyreTensorLayout
    dma_sizes: Index
    dma_strides: Index
    base_address: int
    core_map: WriterOfStick
    view_strides: Index
    view_offset: int = 0

    def position(self, index: Sequence[int]) -> DevicePosition:
        """Stick, lane and byte offset of the compared element ``index``."""
        host = tuple(index)
        if (self.view_strides, self.view_offset) != (self.dma_strides, 0):
            offset = self.view_offset + sum(map(mul, index, self.view_strides))
            host = host_coordinate_of_offset(offset, self.dma_sizes, self.dma_strides)
        return device_coordinate(self.layout, self.dma_sizes, self.dma_strides, host)

    def writer_of(self, index: Sequence[int]) -> StickWriter | None:
        """The last writer of the stick of the compared element ``index``, if known."""
        return self.core_map(self.position(index).stick)


def describe_location(location: OutputLocation, index: Sequence[int]) -> str:
    """One line naming core, tile, stick, lane and address of the output element ``index``."""
    place = location.position(index)
    parts = [
        *_describe_writer(location.core_map(place.stick)),
        f"stick {place.stick}",
        f"lane {place.lane}",
        f"address {location.base_address + place.byte_offset:#x}",
    ]
    return ", ".join(parts)


def _describe_writer(writer: StickWriter | None) -> list[str]:
    if writer is None:
        return []
    if writer.core is None:
        return ["written by no execute"]
    parts = [f"core {writer.core}"]
    if writer.tile:
        parts.append(f"tile {writer.tile}")
    if writer.execute is not None:
        parts.append(f"execute {writer.execute} ({writer.operation})")
    return parts


def format_comparison(
    comparison: Comparison, name: str = "output", place: OutputLocation | None = None
) -> str:
    """The report of a comparison: one line if it is right, else counts, extremes, worst element."""
    limits = f"rtol {comparison.tolerance.rtol:.4g}, atol {comparison.tolerance.atol:.4g}"
    if comparison.ok:
        text = f"{name}: all {comparison.total} elements agree ({limits})"
        if comparison.max_abs is not None and comparison.max_abs[0]:
            text += f", greatest absolute difference {_extreme_text(comparison.max_abs)}"
        return text
    share = 100 * comparison.mismatched / comparison.total
    lines = [
        f"{name}: {comparison.mismatched} of {comparison.total} elements differ ({share:.1f} %)",
        f"  greatest absolute difference: {_extreme_text(comparison.max_abs)} (atol "
        f"{comparison.tolerance.atol:.4g})",
        f"  greatest relative difference: {_extreme_text(comparison.max_rel)} (rtol "
        f"{comparison.tolerance.rtol:.4g})",
        f"  worst element {comparison.worst_index}: expected {comparison.expected_worst}, "
        f"found {comparison.found_worst}",
    ]
    if place is not None and comparison.worst_index is not None:
        lines.append(f"  on the card: {describe_location(place, comparison.worst_index)}")
    return "\n".join(lines)


def _extreme_text(extreme: Extreme | None) -> str:
    return "none" if extreme is None else f"{extreme[0]:.6g} at index {extreme[1]}"


# --- writers ----------------------------------------------------------------------------------


def last_writer(linked: LinkedProgram, address_bytes: int) -> StickWriter | None:
    """The last writer of the stick at an HBM address in one launch; with core None if none is.

    Of several cores that combine partial results, the first. None (unknown) if an execute scatters
    through an index, because addresses then depend on data.
    """
    found = (
        _last_of_run(linked, execute, run, address_bytes)
        for execute in linked.program.executes
        for run in linked.runs[execute.index]
    )
    writers = [writer for writer in found if writer is not None]
    if writers:
        return max(reversed(writers), key=lambda writer: writer[0])[1]
    outputs = (t for group in linked.plans for plan in group for t in plan.op.outputs)
    scatters = any(tensor.indirection is Indirection.VALUE for tensor in outputs)
    return None if scatters else StickWriter(None)


def _last_of_run(
    linked: LinkedProgram, execute: Execute, run: LinkedPart, address: int
) -> tuple[int, StickWriter] | None:
    """(position in program order, writer) of the last execution that covers ``address``."""
    op = run.plan.op
    tensor = op.tensors[-1]
    if tensor.component is not Component.HBM or tensor.indirection is Indirection.VALUE:
        return None
    hits = covers(op, tensor, address - run.starts(len(op.tensors) - 1))
    rows = np.flatnonzero(hits.any(axis=1))
    if not len(rows):
        return None
    schedule = linked.schedule
    positions = np.flatnonzero(schedule.order == execute.index)
    last = positions[np.isin(schedule.instance[positions], run.instances[rows])][-1]
    instance = int(schedule.instance[last])
    row = int(np.flatnonzero(run.instances == instance)[0])
    core = op.cores[int(np.flatnonzero(hits[row])[0])]
    tile = tuple(int(i) for i in schedule.loop_indices[execute.index][instance])
    return int(last), StickWriter(core, tile, execute.index, op.name)
