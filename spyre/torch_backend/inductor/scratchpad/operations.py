"""Operations of a kernel, in the order they run, and what each reads and writes.

`operations_of` derives them from specs whose work is divided already. Loops are kept as ranges of
operations, since a loop says how long a buffer lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

import sympy

from spyre.errors import BundleError
from spyre.hw.spec import STICK_BYTES
from spyre.torch_backend.inductor.division.core_numbering import split_reductions
from spyre.torch_backend.inductor.gather_views import INDIRECT
from spyre.torch_backend.inductor.op_spec import (
    MATMUL,
    LoopSpec,
    OpSpec,
    Spec,
    TensorArg,
    UnimplementedOp,
)
from spyre.torch_backend.inductor.scratchpad.core_view import CoreView, NoView, core_view


class Kind(StrEnum):
    """What planning must know of an operation besides its name."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    MATMUL = "matmul"
    RESTICKIFY = "restickify"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class Access:
    """One argument of an operation.

    ``coordinates``: device coordinates, sympy. ``size_bytes``: of the whole buffer in HBM, all
    cores together. ``moves``: a loop advances its address.
    """

    buffer: str
    is_write: bool
    view: CoreView | NoView
    device_dtype: str
    coordinates: tuple[sympy.Expr, ...]
    size_bytes: int
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: ``name`` is its opFuncName, ``splits_reduction``: cores share what it sums."""

    name: str
    kind: Kind
    accesses: tuple[Access, ...] = ()
    splits_reduction: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the buffers it reads, each once, in the order of its arguments."""
        return tuple(dict.fromkeys(a.buffer for a in self.accesses if not a.is_write))

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the buffers it writes, each once."""
        return tuple(dict.fromkeys(a.buffer for a in self.accesses if a.is_write))


@dataclass(frozen=True, slots=True)
class Operations:
    """A kernel flattened. ``loops``: [begin, end) of every loop's operations, outer loops first."""

    steps: tuple[Operation, ...]
    loops: tuple[tuple[int, int], ...] = ()

    def accesses(self) -> dict[str, list[tuple[int, Access]]]:
        """Per buffer, in the order of first use: (index of the operation, access)."""
        found: dict[str, list[tuple[int, Access]]] = {}
        for step, operation in enumerate(self.steps):
            for access in operation.accesses:
                found.setdefault(access.buffer, []).append((step, access))
        return found


def operations_of(specs: Sequence[Spec], names: Sequence[Sequence[str]]) -> Operations:
    """``specs`` flattened, their tensors named by ``names``.

    ``names``: per operation in the order they stand (loops entered, nothing repeated) a name per
    argument; () for an UnimplementedOp. BundleError SPY988 if they do not fit.
    """
    flat: list[OpSpec | UnimplementedOp] = []
    loops: list[tuple[int, int]] = []
    depths: list[int] = []
    _flatten(specs, 0, flat, depths, loops)
    if len(flat) != len(names):
        _misnamed("the kernel", f"{len(flat)} operations", f"names for {len(names)}")
    steps = (
        _operation(spec, named, depth)
        for spec, named, depth in zip(flat, names, depths, strict=True)
    )
    return Operations(tuple(steps), tuple(loops))


def _flatten(
    specs: Sequence[Spec],
    depth: int,
    flat: list[OpSpec | UnimplementedOp],
    depths: list[int],
    loops: list[tuple[int, int]],
) -> None:
    for spec in specs:
        if isinstance(spec, LoopSpec):
            place, begin = len(loops), len(flat)
            _flatten(spec.body, depth + 1, flat, depths, loops)
            loops.insert(place, (begin, len(flat)))
        else:
            flat.append(spec)
            depths.append(depth)


def _misnamed(what: str, expected: str, found: str) -> None:
    raise BundleError(
        "SPY988", f"names do not fit the tensors of {what}", expected=expected, found=found
    )


def _operation(spec: OpSpec | UnimplementedOp, names: Sequence[str], depth: int) -> Operation:
    args = spec.args if isinstance(spec, OpSpec) else ()
    if len(args) != len(names):
        _misnamed(spec.op, f"{len(args)} arguments", f"{len(names)} names")
    if isinstance(spec, UnimplementedOp):
        return Operation(spec.op, Kind.EXTERNAL)
    accesses = tuple(_access(spec, arg, name, depth) for arg, name in zip(args, names, strict=True))
    return Operation(spec.op, _kind(spec), accesses, bool(split_reductions(spec)))


def _kind(spec: OpSpec) -> Kind:
    if spec.op in ("topkvalue", "topkindex") or INDIRECT in spec.op_info:
        return Kind.EXTERNAL
    if spec.op == "ReStickifyOpHBM":
        return Kind.RESTICKIFY
    if spec.op == MATMUL:
        return Kind.MATMUL
    return Kind.REDUCTION if spec.is_reduction else Kind.POINTWISE


def _access(spec: OpSpec, arg: TensorArg, name: str, depth: int) -> Access:
    coordinates = tuple(sympy.sympify(c) for c in arg.device_coordinates)
    touched: set[sympy.Symbol] = set().union(*(c.free_symbols for c in coordinates))
    tiled = {symbol for symbol in spec.tiled_symbols if symbol != 0}
    return Access(
        buffer=name,
        is_write=not arg.is_input,
        view=core_view(spec, arg),
        device_dtype=str(arg.device_dtype),
        coordinates=coordinates,
        size_bytes=prod((arg.within or arg.device_size)[:-1]) * STICK_BYTES,
        moves=depth > 0 and not arg.per_tile_fixed and bool(tiled & touched),
    )
