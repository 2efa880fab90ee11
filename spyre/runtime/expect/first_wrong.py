"""The first execute of a run that deviates from the values its function should have.

Every execution is judged by what it takes and leaves: a tile read from an input has to be a tile of
that input; a result that was a tile of a known value in the first iteration has to be the next tile
in the next. What never was a known value (partial sums, steps of a decomposition) is not judged.
Outputs are judged once more at the end, by place. Where only that shows a deviation, no value says
which execute was the first; addresses may: of those before it, the likeliest cause that they show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceLocation, Finding, Severity
from spyre.hw.device import Device
from spyre.mlir.operation import Component
from spyre.runtime.arguments import HostTensor
from spyre.runtime.compare import ExecuteView, OutputLocation
from spyre.runtime.expect.known import (
    Arrangement,
    Array,
    BoolArray,
    Coords,
    Course,
    KnownValue,
    arrangements,
    courses,
    is_constant,
)
from spyre.runtime.expect.stepping import Parts
from spyre.runtime.expect.tiles import OperandTile, read_tile
from spyre.runtime.tracing import TiledExecutes, TracedLaunch, tile_groups, trace_executes


@dataclass(frozen=True, eq=False)
class Deviation:
    """An execution whose operand is not what it should be.

    ``is_read``: it took the wrong tile; else it left one. ``value``: the known value it should be a
    tile of. ``wrong``: by element of the tile, with ``cores`` that have them (numbers), over
    ``dims``. ``suspicion``: of an output judged by place, what the addresses of an execute before
    it show; that execute then is the first wrong one. ``order``: in which the function was given
    its inputs, where no names say so.
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
        """Of the execute, as reports count."""
        place = self.location if self.suspicion is None else self.suspicion.location
        assert isinstance(place, DeviceLocation)
        assert place.execute is not None
        return place.execute

    @property
    def is_of_output(self) -> bool:
        """Whether an output was judged, by place, and ``wrong`` is of its elements."""
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
        """The deviation as reports take it."""
        place = ", ".join(f"{d} {i}" for d, i in zip(self.dims, self.worst, strict=True))
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
            known = f"output {self.value} is wrong, and no execute judged before it was"
        else:
            known = "the first wrong execute"
        verb = "reads from" if self.is_read else "computes in"
        return Finding(
            "SPY622",
            Severity.ERROR,
            f"{known}: what {self.operation} {verb} {self.location.tensor} is not "
            f"the tile of {self.value} that is due",
            self.location,
            f"{self.expected:.6g} at {place}",
            f"{self.found:.6g}; {int(self.wrong.sum()):,} of {self.wrong.size:,} elements differ, "
            f"on {sum(share > 0 for share in self.by_core.values())} of {len(self.by_core)} cores",
            self.order,
        )


@dataclass
class ExecuteVerdict:
    """How often an execute agreed with a known value, and how often nothing was known."""

    number: int
    operation: str
    sdsc: str
    value: str = ""
    agreed: int = 0
    unknown: int = 0
    deviated: bool = False


@dataclass
class FirstWrong:
    """A watcher of the launches of one run.

    ``known``: inputs, results of operations and outputs of the function. ``uploaded``: names of the
    arguments that hold inputs. ``launches``: of the run, in order. ``address_findings``: possible
    causes that their addresses show, the likeliest first. ``order``: as of `Deviation`.
    """

    known: Sequence[KnownValue]
    uploaded: frozenset[str]
    launches: Sequence[TracedLaunch]
    address_findings: Callable[[Sequence[TracedLaunch]], Sequence[Finding]]
    order: str = ""
    found: Deviation | None = None
    verdicts: dict[int, ExecuteVerdict] = field(default_factory=dict)
    _courses: dict[tuple[int, int], tuple[Course, ...]] = field(default_factory=dict)
    _groups: dict[int, tuple[TiledExecutes, int]] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)
    _states: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        for group in tile_groups(trace_executes(self.launches)):
            for row, member in enumerate(group.members):
                self._groups[member.number] = group, row

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Judge what the execution is about to read from inputs."""
        first, verdict = parts[0], self._verdict(parts[0], number)
        self._states = []
        if self.found is None and len(parts) == 1:
            inputs = self._inputs(first)
            self._states += [self._judge(device, first, k, verdict) for k in inputs]
        verdict.deviated |= self.found is not None and self.found.number == number

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Judge what it has left."""
        if self.found is not None:
            return
        first, verdict = parts[0], self._verdict(parts[0], number)
        count = len(first.op.tensors)
        outputs = range(count - len(first.op.outputs), count)
        if len(parts) == 1:
            self._states += [self._judge(device, first, k, verdict) for k in outputs]
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
        """Operands that are read from arguments as they were uploaded."""
        names = [_owner(step, k) for k in range(len(step.op.inputs))]
        fresh = self.uploaded - self._written
        return [k for k, name in enumerate(names) if name in fresh]

    def _judge(
        self, device: Device, step: ExecuteView, operand: int, verdict: ExecuteVerdict
    ) -> str | None:
        """The value the operand is a tile of; None where nothing is known, or it deviates."""
        tile = read_tile(device, step, operand) if self.found is None else None
        if tile is None or not tile.dims or is_constant(tile.values):
            return None
        group, member = self._groups[verdict.number]
        row = step.instance if len(group.members) == 1 else member
        taken = _Taken(step, operand, tile, verdict, group, row)
        key = id(group), operand
        ways = self._courses.get(key)
        alive = self._begin(taken) if ways is None else self._go_on(taken, ways)
        self._courses[key] = alive
        return alive[0].arrangement.value.name if alive else None

    def _begin(self, taken: _Taken) -> tuple[Course, ...]:
        """Where a loop's first tile lies. One that is read from an input has to be a tile of it."""
        ways = courses(self._places(taken.tile, self.known), taken.group.nest)
        guess = self._likely(taken) if taken.is_read and not ways else None
        if guess is not None:
            self.found = taken.deviation(*guess, self.order)
        return ways

    def _go_on(self, taken: _Taken, ways: tuple[Course, ...]) -> tuple[Course, ...]:
        """The ways on which a later tile lies; none of several is a deviation."""
        nest, row = taken.group.nest, taken.row
        values = taken.tile.values
        alive = tuple(
            way for way in ways if not way.arrangement.wrong(values, way.coords(nest, row)).any()
        )
        if ways and not alive and len(taken.group.members) > 1:
            # Unrolled executes may be alike and yet do something else, for another value.
            others = [v for v in self.known if all(v is not w.arrangement.value for w in ways)]
            alive = courses(self._places(taken.tile, others), nest)
        if ways and not alive:
            way = ways[0]
            self.found = taken.deviation(way.arrangement, way.coords(nest, row), self.order)
        return alive

    def _places(
        self, tile: OperandTile, known: Sequence[KnownValue]
    ) -> list[tuple[Arrangement, Coords]]:
        return [
            (way, coords)
            for value in known
            for way in arrangements(value, tile.values.shape)
            for coords in way.places(tile.values)
        ]

    def _likely(self, taken: _Taken) -> tuple[Arrangement, Coords] | None:
        """The tile at the beginning of the input that differs least."""
        name = _owner(taken.step, taken.operand)
        values = [value for value in self.known if value.name == name]
        ways = [w for value in values for w in arrangements(value, taken.tile.values.shape)]
        starts = [(way, (0,) * len(way.grid)) for way in ways]

        def distance(pair: tuple[Arrangement, Coords]) -> int:
            return int(pair[0].wrong(taken.tile.values, pair[1]).sum())

        return min(starts, key=distance, default=None)

    def judge_outputs(
        self,
        found: Sequence[HostTensor],
        places: Sequence[OutputLocation],
        expected: Mapping[int, Array],
    ) -> None:
        """Where no execute deviated: the first that left wrong elements in an output.

        ``expected``: by number of the output; those of other shapes are other values.
        """
        for k, values in expected.items():
            tensor, place = found[k], places[k]
            numbers = tensor.to_values()
            if numbers.shape == values.shape and numbers.dtype.kind == "f":
                self._judge_output(tensor.name, values, numbers, place)

    def _judge_output(
        self, name: str, expected: Array, found: Array, place: OutputLocation
    ) -> None:
        wrong = KnownValue(name, expected).differs(found, expected)
        if self.found is not None or not wrong.any() or place.core_map is None:
            return
        indices = np.argwhere(wrong)
        chosen = indices[np.unique(np.linspace(0, len(indices) - 1, _SAMPLES).astype(np.int64))]
        writers = [(place.writer_of(index), index) for index in map(tuple, chosen.tolist())]
        known = [(w, i) for w, i in writers if w is not None and w.execute is not None]
        if not known:
            return
        writer, index = min(known, key=lambda pair: (pair[0].tile, pair[0].execute or 0))
        last = writer.execute or 0
        suspicion = self._suspicion(last)
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
            suspicion,
            self.order,
        )
        self.verdicts[self.found.number].deviated = True

    def _suspicion(self, last: int) -> Finding | None:
        """The likeliest cause that addresses show, of the executes up to ``last``.

        What stays unwritten follows from a cause and is none.
        """
        shown = self.address_findings(self.launches)
        return next((each for each in shown if _is_cause(each) and _execute(each) <= last), None)


@dataclass(frozen=True, eq=False)
class _Taken:
    """An operand of one execution with what it holds; ``row``: which of its group."""

    step: ExecuteView
    operand: int
    tile: OperandTile
    verdict: ExecuteVerdict
    group: TiledExecutes
    row: int

    @property
    def is_read(self) -> bool:
        return self.operand < len(self.step.op.inputs)

    def deviation(self, way: Arrangement, coords: Coords, order: str) -> Deviation:
        """That it is not the tile of ``way`` at ``coords``."""
        step, tile = self.step, self.tile
        wrong = way.wrong(tile.values, coords)
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        cores = np.array(step.op.cores)[tile.cores[tuple(slice(n) for n in way.tile_shape)]]
        location = DeviceLocation(
            self.verdict.sdsc,
            self.verdict.number,
            int(cores[at]),
            step.op.tensors[self.operand].name,
            loop_indices=step.loop_indices,
            source=step.statement.location,
        )
        return Deviation(
            location,
            step.op.name,
            self.is_read,
            way.value.name,
            tile.dims,
            wrong,
            cores,
            float(way.tiles[coords][at]),
            float(tile.values[at]),
            order=order,
        )


def _is_cause(finding: Finding) -> bool:
    return finding.code != "SPY720" and isinstance(finding.location, DeviceLocation)


def _execute(finding: Finding) -> int:
    assert isinstance(finding.location, DeviceLocation)
    return finding.location.execute or 0


_SAMPLES = 200
"""Wrong elements of an output whose writers are looked up."""


def _owner(step: ExecuteView, operand: int) -> str | None:
    """The argument in whose memory an operand begins."""
    if step.op.tensors[operand].component is not Component.HBM:
        return None
    start = int(step.starts[operand].min())
    for allocation in step.linked.binding.allocations:
        if allocation.address_bytes <= start < allocation.end_bytes and allocation.device_dims:
            return allocation.name
    return None
