"""Finds the first execute of a run that deviates from the reference values of its function.

Each execution is checked at its operands. An input tile must match the reference input at the
position that the loop implies; an output whose first tile matches a reference value must match that
value's next tile in every later iteration. Results without a reference value (partial sums, steps
of a decomposition) are not checked. The outputs of the run are compared at the end. If only that
shows a deviation, the wrong execute is looked for among those with suspicious addresses.

The search collects a verdict per execute: the known values that its operands agree with. Three
rules name the value that an execute without a known result should have computed, and the first
execute that one of them names is the first wrong one:

1. The graph node of its origin (``debug_handle_``), or the aten operation of that node, has known
   values, and no execute of the node computes one. Without an origin, its operation is the node.
2. It copies, and reads a known value.
3. Its origin, if it has one, has no known values, and it reads all operands of a value that no
   execute computes, nor any value made of it. An operand without a known value, or further
   executes of its node, may be to blame, if addresses show it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.diagnose.address_checks import check_addresses, intermediate_uses, reads_before_write
from spyre.diagnose.tiles import (
    Array,
    BoolArray,
    Coords,
    OperandTile,
    ReferenceValue,
    TileLayout,
    TilePath,
    find_paths,
    is_constant,
    read_tile,
    tile_layouts,
)
from spyre.errors import DeviceLocation, Finding, Severity
from spyre.hw.device import Device
from spyre.mlir.operation import RESTICKIFY, Component, Origin
from spyre.runtime.arguments import HostTensor
from spyre.runtime.compare import ExecuteView, OutputLocation, Parts
from spyre.runtime.tracing import MemoryExecute, TiledExecutes, tile_groups

# --- values that tiles must have -----------------------------------------------------------------

Values = tuple[ReferenceValue, ...]
Output = tuple[ReferenceValue, Array, OutputLocation]
COPIES = (RESTICKIFY, "identity")


class ExecuteVerdict(msgspec.Struct, eq=False):
    """The known values that an execute reads and computes.

    ``reads``: of each input in the first execution, None where its tile cannot be located.
    ``results``: of all executions. ``agreed`` and ``unknown``: number of executions whose result
    was a tile of a known value, and of the others. ``value``: name of the last such value.
    ``written``: the tile of the first result.
    """

    number: int
    operation: str
    sdsc: str
    origin: Origin
    reads: list[Values | None] = msgspec.field(default_factory=list)
    results: set[ReferenceValue] = msgspec.field(default_factory=set)
    value: str = ""
    agreed: int = 0
    unknown: int = 0
    deviated: bool = False
    written: tuple[ExecuteView, int, OperandTile] | None = None

    @property
    def read_values(self) -> set[ReferenceValue]:
        """All values that it reads."""
        return {value for values in self.reads for value in values or ()}

    @property
    def is_filled(self) -> bool:
        """True if it wrote equal numbers and read no value."""
        is_equal = self.written is not None and is_constant(self.written[2].values)
        return is_equal and not self.read_values

    def __str__(self) -> str:
        if self.agreed:
            return f"{self.agreed} of {self.agreed + self.unknown} agree with {self.value}"
        names = dict.fromkeys(values[0].name for values in self.reads if values)
        return f"reads {', '.join(names)}; result: no known value" if names else "no known value"


def due_values(
    verdicts: Mapping[int, ExecuteVerdict], known: Sequence[ReferenceValue]
) -> list[Due]:
    """Executes that should have computed a value, each with the last of its node and the values."""
    every = list(verdicts.values())
    computed = {value for verdict in every for value in verdict.results}
    rest = [value for value in known if value not in computed]
    used = {operand for value in rest for _, operands in value.makers for operand in operands}
    missing = [value for value in rest if value.makers and (value in used or not value.is_inner)]
    nodes = list(_nodes(every, known))
    named = {id(verdict) for members, _ in nodes for verdict in members}
    others = [verdict for verdict in every if id(verdict) not in named or not any(verdict.origin)]
    found = (*_of_nodes(nodes), *_of_copies(every), *_of_readers(others, missing))
    order = {id(verdict): k for k, verdict in enumerate(every)}
    return sorted(found, key=lambda due: order[id(due[0])])


Due = tuple[ExecuteVerdict, ExecuteVerdict, Values]
Node = tuple[list[ExecuteVerdict], Sequence[ReferenceValue]]
"""The executes of a graph node, and the values that it may have."""


def _nodes(verdicts: Sequence[ExecuteVerdict], known: Sequence[ReferenceValue]) -> Iterable[Node]:
    by_name: dict[str, list[ReferenceValue]] = {}
    for value in known:
        for name in value.names:
            by_name.setdefault(plain_name(name), []).append(value)
    nodes: dict[str, Node] = {}
    for verdict in verdicts:
        node, aten_op = verdict.origin
        for key in (node, aten_op or verdict.operation):
            if values := by_name.get(plain_name(key)):
                nodes.setdefault(key, ([], values))[0].append(verdict)
    return nodes.values()


def _of_nodes(nodes: Iterable[Node]) -> Iterator[Due]:
    for members, values in nodes:
        if not any(verdict.results.intersection(values) for verdict in members):
            last, unknown = members[-1], [v for v in members if v.written and not v.agreed]
            # Constants fill memory before the node computes, unless nothing else is wrong.
            unknown = [v for v in unknown if not v.is_filled] or unknown
            is_other = any(not v.is_inner for v in last.results - last.read_values)
            if not is_other and (unknown or last.written):
                yield (unknown or [last])[0], last, tuple(values)


def _of_copies(verdicts: Iterable[ExecuteVerdict]) -> Iterator[Due]:
    for verdict in verdicts:
        is_copy = verdict.operation in COPIES and verdict.written is not None
        if is_copy and verdict.read_values and not verdict.agreed:
            yield verdict, verdict, tuple(verdict.read_values)


def _of_readers(
    verdicts: Iterable[ExecuteVerdict], missing: Sequence[ReferenceValue]
) -> Iterator[Due]:
    for verdict in verdicts:
        if verdict.written is None or verdict.agreed:
            continue
        read = verdict.read_values
        due = [v for v in missing if any(ops and read.issuperset(ops) for _, ops in v.makers)]
        if due:
            yield verdict, verdict, tuple(due)


def plain_name(name: str) -> str:
    """``sum`` for the node ``sum_1`` and for the operation ``aten.sum.dim_IntList``."""
    name = re.sub(r"^(aten|prims)\.", "", name).partition(".")[0]
    return re.sub(r"(_default)?(_\d+)?$", "", name).strip("_")


# --- the search ----------------------------------------------------------------------------------


class Deviation(msgspec.Struct, frozen=True, eq=False):
    """An execution with a wrong operand.

    ``is_read``: the operand is an input. ``value``: name of the reference value. ``wrong``: True
    per wrong element of the tile, over ``dims``; ``cores``: number of the core that holds each
    element. ``suspicion``: for a wrong output of the run, an address finding on an earlier execute,
    which is then the first wrong one. ``order``: the order in which the function was given its
    inputs, if they could not be matched by name. ``left_out``: SDSC files that are never executed.
    """

    location: DeviceLocation
    operation: str
    is_read: bool
    value: str
    dims: tuple[str, ...]
    wrong: BoolArray
    cores: npt.NDArray[np.int64]
    expected: float
    found: float
    suspicion: Finding | None = None
    order: str = ""
    left_out: str = ""

    @property
    def number(self) -> int:
        """Number of the execute, as reports count; -1 if only a left out execute can be wrong."""
        location = self.location if self.suspicion is None else self.suspicion.location
        assert isinstance(location, DeviceLocation)
        return -1 if location.execute is None else location.execute

    @property
    def is_of_output(self) -> bool:
        """True if ``wrong`` is over the elements of an output of the run."""
        return self.location.tensor == self.value

    @property
    def worst(self) -> tuple[int, ...]:
        """Index of the first wrong element."""
        return tuple(int(i) for i in np.argwhere(self.wrong)[0])

    @property
    def by_core(self) -> dict[int, float]:
        """Share of wrong elements per core."""
        numbers = np.unique(self.cores)
        return {int(core): float(self.wrong[self.cores == core].mean()) for core in numbers}

    @property
    def _wrong_value(self) -> str:
        return f"output {self.value}" if self.is_of_output else self.value

    @property
    def _message(self) -> str:
        if self.number < 0:
            return f"{self.left_out} is never executed, and output {self.value} is wrong"
        if self.location.core is None:
            return f"no execute writes {self.value} where it is wrong; last is {self.operation}"
        if self.left_out:
            head = f"{self.left_out} is never executed; the first execute that is wrong by that"
        elif self.is_of_output:
            head = f"output {self.value} is wrong, and no execute checked before it was"
        else:
            head = "the first wrong execute"
        verb = "reads from" if self.is_read else "writes to"
        return (
            f"{head}: the tile that {self.operation} {verb} {self.location.tensor} differs from "
            f"the expected tile of {self.value}"
        )

    @property
    def _cores_text(self) -> str:
        if self.is_of_output:
            return ""
        wrong = sum(share > 0 for share in self.by_core.values())
        return f", on {wrong} of {len(self.by_core)} cores"

    def __str__(self) -> str:
        return str(self.to_finding())

    def to_finding(self) -> Finding:
        """The deviation as a finding for reports."""
        index = ", ".join(f"{d} {i}" for d, i in zip(self.dims, self.worst, strict=True))
        if self.suspicion is not None:
            return dataclasses.replace(
                self.suspicion,
                code="SPY622",
                severity=Severity.ERROR,
                message=f"the first wrong execute, by its addresses; {self._wrong_value} is wrong: "
                f"{self.suspicion.message}",
                hint=self.order or self.suspicion.hint,
            )
        return Finding(
            "SPY622",
            Severity.ERROR,
            self._message,
            self.location,
            f"{self.expected:.6g} at {index}",
            f"{self.found:.6g}; {int(self.wrong.sum()):,} of {self.wrong.size:,} elements differ"
            f"{self._cores_text}",
            self.order,
        )


class FirstDivergence(msgspec.Struct):
    """Observes the launches of one run; an `ExecuteObserver`.

    ``known``: inputs, results of operations and outputs of the function. ``uploaded``: names of the
    arguments that hold inputs. ``launches``: of the run, in order. ``order``: as in `Deviation`.
    ``outputs``: results of the function, in its order. ``left_out``: as in `Deviation`. ``found``:
    the first deviation, if there is one.
    """

    known: Sequence[ReferenceValue]
    uploaded: frozenset[str]
    executes: Sequence[MemoryExecute]
    order: str = ""
    outputs: Sequence[Array] = ()
    left_out: str = ""
    found: Deviation | None = None
    verdicts: dict[int, ExecuteVerdict] = msgspec.field(default_factory=dict)
    _paths: dict[tuple[int, int], tuple[TilePath, ...]] = msgspec.field(default_factory=dict)
    _groups: dict[int, tuple[TiledExecutes, int]] = msgspec.field(default_factory=dict)
    _written: set[str] = msgspec.field(default_factory=set)

    def __post_init__(self) -> None:
        for group in tile_groups(self.executes):
            for row, member in enumerate(group.members):
                self._groups[member.number] = group, row

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Check the tiles that the execution is about to read from inputs."""
        first, verdict = parts[0], self._verdict(parts[0], number)
        if len(parts) != 1:
            return
        fresh = self._inputs(first)
        for k in range(len(first.op.inputs)) if not verdict.reads else fresh:
            if k in fresh:
                values = self._check(device, first, k, verdict)
            else:
                values = self._values_at(read_tile(device, first, k))
            if len(verdict.reads) < len(first.op.inputs):
                verdict.reads.append(values)
        verdict.deviated |= self.found is not None and self.found.number == number

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Check the tiles that it has written."""
        first, verdict = parts[0], self._verdict(parts[0], number)
        count = len(first.op.tensors)
        outputs = range(count - len(first.op.outputs), count)
        values: list[ReferenceValue] = []
        if len(parts) == 1:
            values = [v for k in outputs for v in self._check(device, first, k, verdict) or ()]
        self._written |= {name for k in outputs if (name := _owner(first, k)) is not None}
        is_copy = first.op.name in COPIES
        new = [v for v in values if is_copy or v not in verdict.read_values or _is_made(v, verdict)]
        verdict.results.update(new)
        verdict.value = new[0].name if new else verdict.value
        verdict.agreed += bool(new)
        verdict.unknown += not new
        verdict.deviated |= self.found is not None and self.found.number == number

    def _verdict(self, step: ExecuteView, number: int) -> ExecuteVerdict:
        group, member = self._groups[number]
        sdsc = group.first.label.sdsc(step.statement.source)
        made = ExecuteVerdict(number, step.op.name, sdsc, group.members[member].op.origin)
        return self.verdicts.setdefault(number, made)

    def _values_at(self, tile: OperandTile | None) -> Values | None:
        """The known values that a tile is part of; None for a tile that cannot be located."""
        if tile is None or not tile.dims or is_constant(tile.values):
            return None
        positions = _positions(tile.values, self.known)
        return tuple(dict.fromkeys(layout.value.whole for layout, _ in positions))

    def _inputs(self, step: ExecuteView) -> list[int]:
        """Operands that read arguments which no execute has written yet."""
        names = [_owner(step, k) for k in range(len(step.op.inputs))]
        fresh = self.uploaded - self._written
        return [k for k, name in enumerate(names) if name in fresh]

    def _check(
        self, device: Device, step: ExecuteView, operand: int, verdict: ExecuteVerdict
    ) -> Values | None:
        """The values that the operand is a tile of; None for a tile that cannot be located."""
        tile = read_tile(device, step, operand)
        if tile is None or not tile.dims:
            return None
        is_read = operand < len(step.op.inputs)
        if not is_read and verdict.written is None:
            verdict.written = step, operand, tile
        if is_constant(tile.values):
            return None
        group, member = self._groups[verdict.number]
        row = step.instance if len(group.members) == 1 else member
        key = id(group), operand
        paths = self._paths.get(key)
        wrong = None
        if paths is None:
            alive = find_paths(_positions(tile.values, self.known), group.nest)
            # A tile that is read from an input must be one of that input's.
            if not alive and is_read:
                wrong = self._closest(_named(self.known, _owner(step, operand)), tile.values)
        else:
            alive = self._continued(paths, tile.values, group, row)
            if paths and not alive:
                wrong = paths[0].layout, paths[0].coords(group.nest, row)
        self._paths[key] = alive
        if wrong is not None and self.found is None:
            self.found = self._deviation(verdict, step, operand, tile, *wrong)
        values = tuple(dict.fromkeys(path.layout.value.whole for path in alive))
        if not values and not is_read:
            # The last partial result of a sum is a value, though the ones before it are not.
            values = self._values_at(tile) or () if wrong is None else ()
        return values

    def _continued(
        self, paths: tuple[TilePath, ...], values: Array, group: TiledExecutes, row: int
    ) -> tuple[TilePath, ...]:
        """The paths that a later tile, of execution ``row``, is on."""
        nest = group.nest
        alive = tuple(
            path for path in paths if not path.layout.wrong(values, path.coords(nest, row)).any()
        )
        if paths and not alive and len(group.members) > 1:
            # Executes that look like an unrolled loop may compute another value each.
            others = [v for v in self.known if all(v is not path.layout.value for path in paths)]
            alive = find_paths(_positions(values, others), nest)
        return alive

    def _closest(
        self, values: Iterable[ReferenceValue], tile: Array
    ) -> tuple[TileLayout, Coords] | None:
        """The first tile of one of ``values``, in a layout that pads least, and differs least."""
        layouts = [layout for value in values for layout in tile_layouts(value, tile.shape)]
        covered = max((prod(layout.tile_shape) for layout in layouts), default=0)
        layouts = [layout for layout in layouts if prod(layout.tile_shape) == covered]
        starts = [(layout, (0,) * len(layout.grid)) for layout in layouts]
        return min(starts, key=lambda pair: int(pair[0].wrong(tile, pair[1]).sum()), default=None)

    def _deviation(
        self,
        verdict: ExecuteVerdict,
        step: ExecuteView,
        operand: int,
        tile: OperandTile,
        layout: TileLayout,
        coords: Coords,
    ) -> Deviation:
        """The deviation of an operand from the tile of ``layout`` at ``coords``."""
        wrong = layout.wrong(tile.values, coords)
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        cores = np.array(step.op.cores)[tile.cores[tuple(slice(n) for n in layout.tile_shape)]]
        location = DeviceLocation(
            verdict.sdsc,
            verdict.number,
            int(cores[at]),
            step.op.tensors[operand].name,
            loop_indices=step.loop_indices,
            source=step.statement.location,
        )
        return Deviation(
            location,
            step.op.name,
            operand < len(step.op.inputs),
            layout.value.name,
            tile.dims,
            wrong,
            cores,
            float(layout.tiles[coords][at]),
            float(tile.values[at]),
            order=self.order,
        )

    def check_outputs(
        self,
        found: Sequence[HostTensor],
        places: Sequence[OutputLocation],
        expected: Mapping[int, Array],
    ) -> None:
        """If an output is wrong, find an execute before the first deviation that should have
        computed a value and did not, or else the first one that wrote wrong elements.

        ``expected``: by number of the output; arrays of another shape are ignored.
        """
        every = [
            (ReferenceValue(found[k].name, values), numbers, places[k])
            for k, values in expected.items()
            if (numbers := _comparable(found[k], values)) is not None
        ]
        if any(value.differs(numbers, value.values).any() for value, numbers, _ in every):
            self._accept_writers(every)
            self._look_for_due_value()
        for value, numbers, place in every:
            self._check_output(value, numbers, place)
        if self.found is not None and self.left_out:
            self.found = replace(self.found, suspicion=None, left_out=self.left_out)

    def _accept_writers(self, outputs: Iterable[Output]) -> None:
        """Executes that write outputs, and no wrong elements, are right in any layout of tiles.
        Wrong elements without a writer may be due to any execute.
        """
        right: dict[int, ReferenceValue] = {}
        wrong: set[int | None] = set()
        for value, found, place in outputs:
            differs = value.differs(found, value.values)
            wrong |= _writers(place, differs)
            agreed = next((v for v in self.known if np.array_equal(v.values, value.values)), value)
            right |= {number: agreed for number in _writers(place, ~differs) if number is not None}
        for number in right.keys() - wrong if None not in wrong else ():
            verdict = self.verdicts[number]
            if not verdict.agreed:
                verdict.value = right[number].name
                verdict.agreed, verdict.unknown = verdict.unknown, 0
                verdict.results.add(right[number])
            if self.found is not None and self.found.number == number:
                self.found, verdict.deviated = None, False

    def _look_for_due_value(self) -> None:
        order = list(self.verdicts)
        found = len(order) if self.found is None else order.index(self.found.number)
        for verdict, last, values in due_values(self.verdicts, self.known):
            if found <= order.index(verdict.number):
                return
            assert verdict.written is not None
            tile = verdict.written[2]
            closest = self._closest(values, tile.values)
            if closest is not None and closest[0].wrong(tile.values, closest[1]).any():
                self.found = self._deviation(verdict, *verdict.written, *closest)
                self._look_at_addresses(verdict, order[: order.index(last.number) + 1])
                return

    def _look_at_addresses(self, verdict: ExecuteVerdict, until: Sequence[int]) -> None:
        """Replace the deviation by its cause, if addresses of executes ``until`` it show one."""
        assert self.found is not None
        # What runs too early reads no known value, nor does what reads at other addresses.
        if () in verdict.reads or until[-1] != verdict.number:
            suspicion = _suspicion(self.executes, until[-1])
        else:
            suspicion = next(reads_before_write(intermediate_uses(self.executes)), None)
        place = suspicion and suspicion.location
        if isinstance(place, DeviceLocation) and place.execute in until:
            self.found = replace(self.found, suspicion=suspicion)
        self.verdicts[self.found.number].deviated = True

    def _check_output(self, value: ReferenceValue, found: Array, place: OutputLocation) -> None:
        name, expected = value.name, value.values
        wrong = value.differs(found, expected)
        if self.found is not None or not wrong.any():
            return
        writers = [(place.writer_of(index), index) for index in _sampled(wrong)]
        known = [(w, i) for w, i in writers if w is not None and w.execute is not None]
        if known:
            writer, index = min(known, key=lambda pair: (pair[0].tile, pair[0].execute or 0))
            last = writer.execute or 0
            verdict = self.verdicts[last]
            source = verdict.written and verdict.written[0].statement.location
            location = DeviceLocation(
                verdict.sdsc, last, writer.core, name, None, writer.tile, source
            )
            suspicion = _suspicion(self.executes, last)
        else:  # no execute writes them; named is one that is left out, or the last
            index, suspicion = writers[0][1], None
            number = None if self.left_out else next(reversed(self.verdicts), None)
            sdsc = self.left_out if number is None else self.verdicts[number].sdsc
            location = DeviceLocation(sdsc, number, tensor=name)
        self.found = Deviation(
            location,
            self.verdicts[location.execute].operation if location.execute is not None else "",
            False,
            name,
            tuple(f"dim {k}" for k in range(wrong.ndim)),
            wrong,
            np.full(wrong.shape, -1 if location.core is None else location.core),
            float(expected[index]),
            float(found[index]),
            suspicion,
            self.order,
        )
        if self.found.number >= 0:
            self.verdicts[self.found.number].deviated = True


def _suspicion(executes: Sequence[MemoryExecute], last: int) -> Finding | None:
    """The most likely address finding on an execute up to ``last``.

    Unwritten memory (SPY720) is the consequence of another finding and is left out.
    """
    for finding in check_addresses(executes, is_wrong=True, with_reads=True):
        place = finding.location
        if not isinstance(place, DeviceLocation) or finding.code == "SPY720":
            continue
        if (place.execute or 0) <= last:
            return finding
    return None


def _positions(tile: Array, known: Sequence[ReferenceValue]) -> list[tuple[TileLayout, Coords]]:
    return [
        (layout, coords)
        for value in known
        for layout in tile_layouts(value, tile.shape)
        for coords in layout.positions(tile)
    ]


_SAMPLES = 200
"""Number of wrong elements of an output whose writers are looked up."""


def _sampled(chosen: BoolArray, count: int = _SAMPLES) -> list[tuple[int, ...]]:
    """Indices of ``count`` elements that are True, the first and the last among them."""
    indices = np.argwhere(chosen)
    some = np.unique(np.linspace(0, len(indices) - 1, min(count, len(indices))).astype(np.int64))
    return [tuple(index) for index in indices[some].tolist()]


def _writers(place: OutputLocation, chosen: BoolArray) -> set[int | None]:
    """The executes that wrote the chosen elements of an output last; None for no execute."""
    writers = [place.writer_of(index) for index in _sampled(chosen, 10 * _SAMPLES)]
    return {None if writer is None else writer.execute for writer in writers}


def _comparable(tensor: HostTensor, expected: Array) -> Array | None:
    """Numbers of an output that is compared; None for other shapes."""
    found = tensor.to_values()
    if found.shape != expected.shape:
        return None
    return found if found.dtype.kind in "iu" else found.astype(np.float32)


def _named(known: Sequence[ReferenceValue], name: str | None) -> list[ReferenceValue]:
    return [value for value in known if value.name == name]


def _is_made(value: ReferenceValue, verdict: ExecuteVerdict) -> bool:
    """True if an operation of the origin, or one whose operand equals its result, has the value."""
    is_own = plain_name(verdict.origin.node) in map(plain_name, value.names)
    return is_own or any(value in operands for _, operands in value.makers)


def _owner(step: ExecuteView, operand: int) -> str | None:
    """Name of the argument whose memory contains the start of an operand."""
    if step.op.tensors[operand].component is not Component.HBM:
        return None
    start = int(step.starts[operand].min())
    for allocation in step.linked.binding.allocations:
        if allocation.address_bytes <= start < allocation.end_bytes and allocation.device_dims:
            return allocation.name
    return None
