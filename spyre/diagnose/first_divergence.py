"""Finds the first execute of a run that deviates from the reference values of its function.

Each execution is checked at its operands. An input tile must match the reference input at the
position that the loop implies; an output whose first tile matches a reference value must match that
value's next tile in every later iteration. Results without a reference value (partial sums, steps
of a decomposition) are not checked. The outputs of the run are compared at the end. If only that
shows a deviation, the wrong execute is looked for among those with suspicious addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from spyre.diagnose.address_checks import check_addresses
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
from spyre.mlir.operation import Component
from spyre.runtime.arguments import HostTensor
from spyre.runtime.compare import ExecuteView, OutputLocation, Parts
from spyre.runtime.tracing import MemoryExecute, TiledExecutes, tile_groups


@dataclass(frozen=True, eq=False)
class Deviation:
    """An execution with a wrong operand.

    ``is_read``: the operand is an input. ``value``: name of the reference value. ``wrong``: True
    per wrong element of the tile, over ``dims``; ``cores``: number of the core that holds each
    element. ``suspicion``: for a wrong output of the run, an address finding on an earlier execute,
    which is then the first wrong one. ``order``: the order in which the function was given its
    inputs, if they could not be matched by name.
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

    @property
    def number(self) -> int:
        """Number of the execute, as reports count."""
        location = self.location if self.suspicion is None else self.suspicion.location
        assert isinstance(location, DeviceLocation)
        assert location.execute is not None
        return location.execute

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

    def __str__(self) -> str:
        return str(self.to_finding())

    def to_finding(self) -> Finding:
        """The deviation as a finding for reports."""
        index = ", ".join(f"{d} {i}" for d, i in zip(self.dims, self.worst, strict=True))
        if self.suspicion is not None:
            return replace(
                self.suspicion,
                code="SPY622",
                severity=Severity.ERROR,
                message=f"the first wrong execute, by its addresses; output {self.value} is wrong: "
                f"{self.suspicion.message}",
                hint=self.order or self.suspicion.hint,
            )
        if self.is_of_output:
            head = f"output {self.value} is wrong, and no execute checked before it was"
        else:
            head = "the first wrong execute"
        verb = "reads from" if self.is_read else "writes to"
        return Finding(
            "SPY622",
            Severity.ERROR,
            f"{head}: the tile that {self.operation} {verb} {self.location.tensor} differs from "
            f"the expected tile of {self.value}",
            self.location,
            f"{self.expected:.6g} at {index}",
            f"{self.found:.6g}; {int(self.wrong.sum()):,} of {self.wrong.size:,} elements differ, "
            f"on {sum(share > 0 for share in self.by_core.values())} of {len(self.by_core)} cores",
            self.order,
        )


@dataclass
class ExecuteVerdict:
    """Executions of an execute that agreed with a reference value, or had none (``unknown``)."""

    number: int
    operation: str
    sdsc: str
    value: str = ""
    agreed: int = 0
    unknown: int = 0
    deviated: bool = False


@dataclass
class FirstDivergence:
    """Observes the launches of one run; an `ExecuteObserver`.

    ``known``: inputs, results of operations and outputs of the function. ``uploaded``: names of the
    arguments that hold inputs. ``launches``: of the run, in order. ``order``: as in `Deviation`.
    ``outputs``: results of the function, in its order. ``found``: the first deviation, if there is
    one.
    """

    known: Sequence[ReferenceValue]
    uploaded: frozenset[str]
    executes: Sequence[MemoryExecute]
    order: str = ""
    outputs: Sequence[Array] = ()
    found: Deviation | None = None
    verdicts: dict[int, ExecuteVerdict] = field(default_factory=dict)
    _paths: dict[tuple[int, int], tuple[TilePath, ...]] = field(default_factory=dict)
    _groups: dict[int, tuple[TiledExecutes, int]] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)
    _states: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        for group in tile_groups(self.executes):
            for row, member in enumerate(group.members):
                self._groups[member.number] = group, row

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Check the tiles that the execution is about to read from inputs."""
        first, verdict = parts[0], self._verdict(parts[0], number)
        self._states = []
        if self.found is None and len(parts) == 1:
            inputs = self._inputs(first)
            self._states += [self._check(device, first, k, verdict) for k in inputs]
        verdict.deviated |= self.found is not None and self.found.number == number

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Check the tiles that it has written."""
        if self.found is not None:
            return
        first, verdict = parts[0], self._verdict(parts[0], number)
        count = len(first.op.tensors)
        outputs = range(count - len(first.op.outputs), count)
        if len(parts) == 1:
            self._states += [self._check(device, first, k, verdict) for k in outputs]
        self._written |= {name for k in outputs if (name := _owner(first, k)) is not None}
        known = [value for value in self._states if value]
        verdict.value = verdict.value or (known[-1] if known else "")
        verdict.deviated |= self.found is not None
        verdict.agreed += bool(known) and self.found is None
        verdict.unknown += not known and self.found is None

    def _verdict(self, step: ExecuteView, number: int) -> ExecuteVerdict:
        sdsc = self._groups[number][0].first.label.sdsc(step.statement.source)
        return self.verdicts.setdefault(number, ExecuteVerdict(number, step.op.name, sdsc))

    def _inputs(self, step: ExecuteView) -> list[int]:
        """Operands that read arguments which no execute has written yet."""
        names = [_owner(step, k) for k in range(len(step.op.inputs))]
        fresh = self.uploaded - self._written
        return [k for k, name in enumerate(names) if name in fresh]

    def _check(
        self, device: Device, step: ExecuteView, operand: int, verdict: ExecuteVerdict
    ) -> str | None:
        """Name of the value that the operand is a tile of; None for none, or if it deviates."""
        tile = read_tile(device, step, operand) if self.found is None else None
        if tile is None or not tile.dims or is_constant(tile.values):
            return None
        group, member = self._groups[verdict.number]
        row = step.instance if len(group.members) == 1 else member
        key = id(group), operand
        paths = self._paths.get(key)
        wrong = None
        if paths is None:
            alive = find_paths(_positions(tile.values, self.known), group.nest)
            # A tile that is read from an input must be one of that input's.
            if not alive and operand < len(step.op.inputs):
                wrong = self._closest(_owner(step, operand), tile.values)
        else:
            alive = self._continued(paths, tile.values, group, row)
            if paths and not alive:
                wrong = paths[0].layout, paths[0].coords(group.nest, row)
        self._paths[key] = alive
        if wrong is not None:
            self.found = self._deviation(verdict, step, operand, tile, *wrong)
        return alive[0].layout.value.name if alive else None

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

    def _closest(self, name: str | None, tile: Array) -> tuple[TileLayout, Coords] | None:
        """The first tile of input ``name``, in the layout in which it differs least."""
        values = [value for value in self.known if value.name == name]
        layouts = [layout for value in values for layout in tile_layouts(value, tile.shape)]
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
        """If no execute deviated, find the first one that wrote wrong elements of an output.

        ``expected``: by number of the output; arrays of another shape are ignored.
        """
        for k, values in expected.items():
            tensor, place = found[k], places[k]
            numbers = tensor.to_values()
            if numbers.shape == values.shape and numbers.dtype.kind == "f":
                self._check_output(tensor.name, values, numbers, place)

    def _check_output(
        self, name: str, expected: Array, found: Array, place: OutputLocation
    ) -> None:
        wrong = ReferenceValue(name, expected).differs(found, expected)
        if self.found is not None or not wrong.any():
            return
        indices = np.argwhere(wrong)
        chosen = indices[np.unique(np.linspace(0, len(indices) - 1, _SAMPLES).astype(np.int64))]
        writers = [(place.writer_of(index), index) for index in map(tuple, chosen.tolist())]
        known = [(w, i) for w, i in writers if w is not None and w.execute is not None]
        if not known:
            return
        writer, index = min(known, key=lambda pair: (pair[0].tile, pair[0].execute or 0))
        last = writer.execute or 0
        verdict = self.verdicts[last]
        core = -1 if writer.core is None else writer.core
        self.found = Deviation(
            DeviceLocation(
                verdict.sdsc, writer.execute, writer.core, name, loop_indices=writer.tile
            ),
            writer.operation,
            False,
            name,
            tuple(f"dim {k}" for k in range(wrong.ndim)),
            wrong,
            np.full(wrong.shape, core),
            float(expected[index]),
            float(found[index]),
            _suspicion(self.executes, last),
            self.order,
        )
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


def _owner(step: ExecuteView, operand: int) -> str | None:
    """Name of the argument whose memory contains the start of an operand."""
    if step.op.tensors[operand].component is not Component.HBM:
        return None
    start = int(step.starts[operand].min())
    for allocation in step.linked.binding.allocations:
        if allocation.address_bytes <= start < allocation.end_bytes and allocation.device_dims:
            return allocation.name
    return None
