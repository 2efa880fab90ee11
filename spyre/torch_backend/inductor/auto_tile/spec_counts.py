"""What the operations of a kernel move and compute, read off its specs.

The same records as those of executed kernels (:mod:`spyre.hw.cost.counting`), before there is a
bundle. An operand's sticks are those its coordinates reach; what several cores read at once counts
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import sympy

from spyre.dtypes import STICK_BYTES
from spyre.hw.cost.operation_counts import CostClass, OperationCounts, ProductShape
from spyre.torch_backend.inductor.op_spec import MATMUL, LoopSpec, OpSpec, Spec, TensorArg
from spyre.torch_backend.inductor.spec_views import LX

RESTICKIFY = "ReStickifyOpHBM"
Extents = Mapping[sympy.Symbol, int]


@dataclass(frozen=True, slots=True)
class SpecCounts:
    """Counts of a kernel. ``intermediate_bytes``: HBM traffic of what it makes itself;
    ``lx_bytes``: the end of the highest buffer in a scratchpad.
    """

    operations: tuple[OperationCounts, ...]
    intermediate_bytes: int
    lx_bytes: int


def spec_counts(specs: Sequence[Spec]) -> SpecCounts:
    """Counts of one launch of a kernel whose work is divided and whose memory is planned."""
    found = [_Operation(spec, counts) for spec, counts in _flattened(specs, ())]
    return SpecCounts(
        tuple(operation.counts() for operation in found),
        sum(operation.intermediate_bytes() for operation in found),
        max((operation.lx_end() for operation in found), default=0),
    )


def _flattened(
    specs: Sequence[Spec], loops: tuple[int, ...]
) -> Iterator[tuple[OpSpec, tuple[int, ...]]]:
    for spec in specs:
        if isinstance(spec, LoopSpec):
            yield from _flattened(spec.body, (*loops, int(spec.count)))
        elif isinstance(spec, OpSpec):
            yield spec, loops


class _Operation:
    """One operation and the loops around it."""

    def __init__(self, spec: OpSpec, loops: tuple[int, ...]) -> None:
        self.spec, self.loops = spec, loops
        self.runs = prod(loops)
        self.extents = {s: int(n) for s, (n, _) in spec.iteration_space.items()}
        self.splits = {s: int(cores) for s, (_, cores) in spec.iteration_space.items()}
        self.cores = prod(self.splits.values())
        self.share = {s: -(-n // self.splits[s]) for s, n in self.extents.items()}

    def counts(self) -> OperationCounts:
        """Its record."""
        spec, product = self.spec, self._product()
        points = self._points() * self.runs
        rows, columns = self._rows_and_columns()
        reads = [arg for arg in spec.args if arg.is_input]
        writes = [arg for arg in spec.args if not arg.is_input]
        return OperationCounts(
            name=spec.op,
            cost_class=self._cost_class(),
            cores=self.cores,
            runs=self.runs,
            hbm_read_bytes=sum(map(self._hbm_bytes, reads)),
            hbm_written_bytes=sum(map(self._hbm_bytes, writes)),
            hbm_reread_bytes=sum(map(self._reread_bytes, reads)),
            lx_read_bytes=sum(map(self._lx_bytes, reads)),
            lx_written_bytes=sum(map(self._lx_bytes, writes)),
            multiply_adds=points if product else 0,
            element_operations=0 if product else points,
            transcendental=False,
            largest_share=prod(self.share.values()) / max(prod(self.extents.values()), 1),
            mac_format=str(spec.args[0].device_dtype),
            rows=rows,
            columns=columns,
            scalar_operand="constants" in spec.op_info and bool(spec.op_info["constants"]),
            product=product,
        )

    def intermediate_bytes(self) -> int:
        """HBM traffic of tensors that are no arguments of the kernel."""
        return sum(self._hbm_bytes(arg) for arg in self.spec.args if arg.arg_index < 0)

    def lx_end(self) -> int:
        """Where the highest of its tensors in LX ends."""
        ends = (
            arg.allocation[LX] + _sticks(arg, self.share) * STICK_BYTES
            for arg in self.spec.args
            if LX in arg.allocation
        )
        return max(ends, default=0)

    def _hbm_bytes(self, arg: TensorArg) -> int:
        return 0 if LX in arg.allocation else _sticks(arg, self.extents) * STICK_BYTES * self.runs

    def _lx_bytes(self, arg: TensorArg) -> int:
        if LX not in arg.allocation:
            return 0
        return _sticks(arg, self.share) * STICK_BYTES * self.cores * self.runs

    def _reread_bytes(self, arg: TensorArg) -> int:
        """What an earlier run has read already: loops that do not move the operand."""
        touched = _symbols(arg)
        moves = zip(self.loops, self.spec.tiled_symbols, strict=True)
        moved = 1 if arg.per_tile_fixed else prod(n for n, s in moves if s in touched)
        return self._hbm_bytes(arg) * (self.runs - moved) // self.runs

    def _points(self) -> int:
        """Points of one run: whole sticks are worked on, sticks of one element too."""
        arg = self.spec.args[0] if self.spec.is_reduction else self.spec.args[-1]
        lanes, lane = arg.device_size[-1], _lane(arg)
        if lane is None:
            return prod(self.extents.values()) * lanes
        padded = -(-self.extents[lane] // lanes) * lanes
        return prod({**self.extents, lane: padded}.values())

    def _cost_class(self) -> CostClass:
        spec, result = self.spec, _symbols(self.spec.args[-1])
        if spec.op == MATMUL:
            return CostClass.MATMUL
        if spec.op == RESTICKIFY:
            return CostClass.TRANSPOSE
        if spec.is_reduction:
            by_lane = _lane(spec.args[0]) not in result
            return CostClass.ROW_REDUCTION if by_lane else CostClass.COLUMN_REDUCTION
        whole = {s for s in result if self.extents[s] > 1}
        lacking = any(
            not whole <= _symbols(arg) and LX not in arg.allocation for arg in spec.args[:-1]
        )
        return CostClass.BROADCAST if lacking else CostClass.POINTWISE

    def _rows_and_columns(self) -> tuple[int, int]:
        """Steps outside of the stick dim, and elements of it: of the largest operand."""
        arg = self.spec.args[0] if self.spec.is_reduction else self.spec.args[-1]
        lane = _lane(arg)
        columns = self.extents.get(lane, 1) if lane else 1
        return prod(self.extents.values()) // columns, columns

    def _product(self) -> ProductShape | None:
        if self.spec.op != MATMUL:
            return None
        left, right, result = (_symbols(arg) for arg in self.spec.args)
        roles = {
            "batch": [s for s in self.extents if s in left and s in right and s in result],
            "m": [s for s in self.extents if s in left and s not in right],
            "n": [s for s in self.extents if s in right and s not in left],
            "k": [s for s in self.extents if s not in result],
        }
        sizes = {role: prod(self.extents[s] for s in row) for role, row in roles.items()}
        cores = {f"{role}_cores": prod(self.splits[s] for s in row) for role, row in roles.items()}
        return ProductShape(**sizes, **cores, shared=not roles["batch"])


def _symbols(arg: TensorArg) -> set[sympy.Symbol]:
    found: set[sympy.Symbol] = set()
    return found.union(*(sympy.sympify(c).free_symbols for c in arg.device_coordinates))


def _lane(arg: TensorArg) -> sympy.Symbol | None:
    """What runs along the sticks."""
    return next(iter(sympy.sympify(arg.device_coordinates[-1]).free_symbols), None)


def _sticks(arg: TensorArg, extents: Extents) -> int:
    """Sticks of the tensor that an iteration over ``extents`` touches, each once."""
    units: dict[sympy.Symbol, int] = {}
    for coordinate in arg.device_coordinates[:-1]:
        for symbol, unit in _units(sympy.sympify(coordinate)):
            units[symbol] = min(unit, units.get(symbol, unit))
    return prod(-(-extents.get(symbol, 1) // unit) for symbol, unit in units.items())


def _units(coordinate: sympy.Expr) -> Iterator[tuple[sympy.Symbol, int]]:
    """Symbols of a coordinate, and how many of their steps move it by one."""
    if isinstance(coordinate, sympy.Symbol):
        yield coordinate, 1
    elif isinstance(coordinate, sympy.floor):
        numerator, divisor = coordinate.args[0].as_numer_denom()
        yield from ((symbol, unit * int(divisor)) for symbol, unit in _units(numerator))
    else:
        for part in coordinate.args:
            yield from _units(part)
