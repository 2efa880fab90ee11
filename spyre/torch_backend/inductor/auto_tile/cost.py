"""What the cost model says of a kernel's specs.

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
from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import kernel_ns
from spyre.hw.counters.counts import (
    CostClass,
    Counters,
    OperationCounts,
    ProductShape,
    is_broadcast,
    product_dims,
    product_shape,
)
from spyre.hw.counters.execute import TRANSCENDENTAL
from spyre.hw.ops.table import OPS
from spyre.torch_backend.inductor.bundles.op_spec import MATMUL, LoopSpec, OpSpec, Spec, TensorArg
from spyre.torch_backend.inductor.bundles.views import LX


@dataclass(frozen=True, slots=True)
class ModelledCost:
    """A launch of a kernel on the card.

    ``time_ns``: without what the host adds. ``hbm_bytes``: read and written, of which
    ``intermediate_bytes`` for what the kernel makes itself. ``lx_bytes``: the end of the highest
    buffer in a scratchpad.
    """

    time_ns: float
    hbm_bytes: int
    intermediate_bytes: int
    lx_bytes: int


def modelled_cost(specs: Sequence[Spec]) -> ModelledCost:
    """The cost of a launch by the calibrated model of the default machine."""
    found: SpecCounts = spec_counts(specs)
    return ModelledCost(
        kernel_ns(found.operations, default_machine()).total_ns,
        sum(counts.hbm_bytes for counts in found.operations),
        found.intermediate_bytes,
        found.lx_bytes,
    )


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
        spec, product, kind = self.spec, self._product(), self._cost_class()
        points = self._points() * self.runs
        lane = _lane(spec.args[0])
        columns = self._padded(lane) if product is None else product.n
        inner = columns if product is None else columns * product.k
        reads = [arg for arg in spec.args if arg.is_input]
        writes = [arg for arg in spec.args if not arg.is_input]
        return OperationCounts(
            name=spec.op,
            cost_class=kind,
            cores=self.cores,
            counters=Counters(
                rdmem_bytes=sum(map(self._hbm_bytes, reads)),
                wrmem_bytes=sum(map(self._hbm_bytes, writes)),
                lx_read_bytes=sum(map(self._lx_bytes, reads)),
                lx_written_bytes=sum(map(self._lx_bytes, writes)),
                multiply_adds=points if product else 0,
                element_operations=0 if product else points,
                executions=self.runs,
            ),
            hbm_reread_bytes=sum(map(self._reread_bytes, reads)),
            transcendental=OPS[spec.op].kernel_op in TRANSCENDENTAL,
            largest_share=1.0 / self.cores,
            mac_format=str(spec.args[0].device_dtype),
            rows=points // self.runs // inner,
            columns=columns,
            column_cores=self.splits.get(lane, 1) if product is None else product.n_cores,
            scalar_operand=self._has_scalar() and kind is CostClass.POINTWISE,
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
        lane = _lane(arg)
        others = prod(n for s, n in self.extents.items() if s != lane)
        return others * self._padded(lane, arg)

    def _padded(self, lane: sympy.Symbol | None, arg: TensorArg | None = None) -> int:
        """Elements along the sticks of ``arg``, whole sticks."""
        lanes = (arg or self.spec.args[0]).device_size[-1]
        return -(-self.extents.get(lane, 1) // lanes) * lanes

    def _cost_class(self) -> CostClass:
        spec = self.spec
        if spec.op == MATMUL:
            return CostClass.MATMUL
        if spec.op == RESTICKIFY:
            return CostClass.TRANSPOSE
        if spec.is_reduction:
            kept = _lane(spec.args[0]) in _symbols(spec.args[-1])
            return CostClass.COLUMN_REDUCTION if kept else CostClass.ROW_REDUCTION
        if any(map(self._is_broadcast, spec.args[:-1])):
            return CostClass.BROADCAST
        return CostClass.POINTWISE

    def _is_broadcast(self, arg: TensorArg) -> bool:
        """An operand in HBM that lacks some dims of the result, but not all of them."""
        varying = {s for s in _symbols(self.spec.args[-1]) if self.extents[s] > 1}
        return LX not in arg.allocation and is_broadcast(_symbols(arg), varying)

    def _has_scalar(self) -> bool:
        """A constant, or one of several operands is one number for all elements."""
        inputs = self.spec.args[:-1]
        is_number = len(inputs) > 1 and not all(map(_symbols, inputs))
        return is_number or bool(self.spec.op_info.get("constants"))

    def _product(self) -> ProductShape | None:
        if self.spec.op != MATMUL:
            return None
        left, right, result = (_symbols(arg) for arg in self.spec.args)
        dims = product_dims(list(self.extents), left, right, result)
        return product_shape(dims, self.extents, self.splits)


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
