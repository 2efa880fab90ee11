"""From a compact description to a complete SDSC: the project's own writer.

Examples, tests, benchmarks and the torch backend describe an operation by extents, splits and
tensors; ``build_operation`` works out cores and start addresses by the address rule of the
SuperDSC reference §5.2 (sdsc.md), ``build_sdsc`` writes the result as the real frontends do.
Common operations on host shapes are in :mod:`.recipes`, whole bundles in
:mod:`.bundles`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import msgspec
from msgspec.structs import replace

from spyre.dtypes import FORMATS
from spyre.errors import BundleError, ValidationError, has_errors
from spyre.mlir.operation import (
    Component,
    Indirection,
    Operation,
    Padding,
    SymbolicDim,
    Tensor,
    Window,
    footprint,
    moving_dims,
    slice_offsets,
)
from spyre.mlir.program import AffineExpr, AffineSymbol
from spyre.mlir.sdsc import (
    MAX_CORES,
    Inspection,
    Sdsc,
    inspect_operation,
    json_path,
    read_operation,
    write_operation,
)

ROLES = ("OUTPUT", "KERNEL", "INPUT")
"""Roles given to tensors that do not name one, in order of first use; roles are not directions."""


class BufferAddress(msgspec.Struct, frozen=True):
    """An address relative to the start of a buffer of a bundle.

    The sum of ``offset_bytes``, of ``loop_strides`` bytes per iteration of each enclosing loop,
    and of ``shifts``, bytes that depend on runtime sizes. A bundle builder turns it into an
    address or a symbol.
    """

    buffer: str
    offset_bytes: int = 0
    loop_strides: Mapping[str, int | SizeValue] = msgspec.field(default_factory=dict)
    shifts: tuple[SizeValue, ...] = ()


class RuntimeSize(msgspec.Struct, frozen=True):
    """A size the launch gives, by ``name``: 0 < size <= ``maximum``, a multiple of
    ``granularity`` (elements). Dims of operations have a maximum, which their memory is laid out
    for; None: a size that only counts loops and moves addresses.
    """

    name: str
    maximum: int | None
    granularity: int = 1


class SizeValue(msgspec.Struct, frozen=True):
    """An integer that depends on runtime sizes: symbol k of ``expression`` is ``sizes[k]``."""

    expression: AffineExpr
    sizes: tuple[RuntimeSize, ...]


Base = int | BufferAddress
Resolve = Callable[[BufferAddress | RuntimeSize, int], int]
"""(place, further offset in bytes) → a literal address, or a negative symbol id; of a runtime size
always its symbol id."""


class OperandSpec(msgspec.Struct, frozen=True):
    """One operand.

    ``dims``: layoutDimOrder_, innermost first, the stick dim at the position of its stick count.
    ``stick``: (dim, elements) pairs, innermost first. ``base``: byte address of the whole tensor
    (of each core's tensor in LX), or a place in a buffer. ``scale``: only the dims that are
    absent (-1) or keep one stick (-2). ``gap``: elements by which the memory is longer than the
    iteration. ``padding``: kind of padding along windowed dims. The rest as in
    :class:`~spyre.mlir.operation.operation.Tensor`; an empty ``role`` is chosen.
    """

    dims: tuple[str, ...]
    stick: tuple[tuple[str, int], ...]
    base: Base
    scale: Mapping[str, int] = msgspec.field(default_factory=dict)
    data_format: str = "SEN169_FP16"
    component: Component = Component.HBM
    gap: Mapping[str, int] = msgspec.field(default_factory=dict)
    role: str = ""
    max_dim_sizes: Mapping[str, int] = msgspec.field(default_factory=dict)
    device_dim_sizes: Mapping[str, int] = msgspec.field(default_factory=dict)
    indirection: Indirection = Indirection.NONE
    padding: Mapping[str, Padding] = msgspec.field(default_factory=dict)
    per_core_in_hbm: bool = False
    own_slices: Mapping[str, int] = msgspec.field(default_factory=dict)
    own_core_slices: tuple[Mapping[str, int], ...] = ()


class OperationSpec(msgspec.Struct, frozen=True):
    """An operation: ``extents`` is N_ (stick dims already rounded up), ``splits`` the work slices.

    ``core_order``: dims whose slice index varies fastest come first; by default the order of
    ``extents``. ``constants``: name → bit pattern, in ``constant_format`` (default the
    operation's). ``index_inputs`` and the inputs or outputs marked as value tensors pair up.
    ``windows``: by spatial dim, whose extents count output positions. ``sizes``: dims of a runtime
    size, whose extents are its maximum. ``last_extents``: extent of the last slice of dims that
    their splits do not divide.
    """

    name: str
    extents: Mapping[str, int]
    inputs: Sequence[OperandSpec]
    outputs: Sequence[OperandSpec]
    splits: Mapping[str, int] = msgspec.field(default_factory=dict)
    index_inputs: Sequence[OperandSpec] = ()
    constants: Mapping[str, int] = msgspec.field(default_factory=dict)
    masks: Mapping[str, Sequence[tuple[int, int]]] = msgspec.field(default_factory=dict)
    core_order: Sequence[str] = ()
    data_format: str = "SEN169_FP16"
    constant_format: str = ""
    unit: str = "sfp"
    windows: Mapping[str, Window] = msgspec.field(default_factory=dict)
    sizes: Mapping[str, RuntimeSize] = msgspec.field(default_factory=dict)
    last_extents: Mapping[str, int] = msgspec.field(default_factory=dict)


def build_sdsc(spec: OperationSpec, sdsc_name: str = "", resolve: Resolve | None = None) -> Sdsc:
    """The SDSC of ``spec``, named ``0_<operation>`` by default. Errors as of `build_inspected`."""
    return build_inspected(spec, sdsc_name, resolve).sdsc


class BuiltOperation(msgspec.Struct, frozen=True):
    """An operation as described, and the result of checking it: no findings above warnings."""

    described: Operation
    inspection: Inspection

    @property
    def sdsc(self) -> Sdsc:
        """Its file."""
        return write_operation(self.described)

    @property
    def simulated(self) -> Operation:
        """The operation that runs. UnsupportedError when it is not simulated."""
        if self.inspection.operation is not None:
            return self.inspection.operation
        return read_operation(self.sdsc, self.described.file)


def build_inspected(
    spec: OperationSpec, sdsc_name: str = "", resolve: Resolve | None = None
) -> BuiltOperation:
    """The operation of ``spec``, checked.

    BundleError SPY290 when the description contradicts itself, ValidationError when the SDSC
    would break a rule of the format.
    """
    op = build_operation(spec, sdsc_name, resolve)
    op = replace(op, file=f"built SDSC {op.sdsc_name}")
    inspection = inspect_operation(op)
    if has_errors(inspection.findings):
        raise ValidationError(inspection.findings)
    return BuiltOperation(op, inspection)


def build_operation(
    spec: OperationSpec, sdsc_name: str = "", resolve: Resolve | None = None
) -> Operation:
    """The operation of ``spec`` with cores, work slices and start addresses. BundleError SPY290."""
    _check_dims(spec)
    slices = {dim: spec.splits.get(dim, 1) for dim in spec.extents}
    outline = _outline(spec, sdsc_name or f"0_{spec.name}", slices, resolve)
    placed = tuple(
        _placed(outline, tensor, operand, spec, resolve)
        for tensor, operand in zip(outline.tensors, _operands(spec), strict=True)
    )
    a, b = len(spec.inputs), len(spec.inputs) + len(spec.index_inputs)
    return replace(outline, inputs=placed[:a], index_tensors=placed[a:b], outputs=placed[b:])


def _operands(spec: OperationSpec) -> tuple[OperandSpec, ...]:
    """Operands in the order of ``Operation.tensors``."""
    return (*spec.inputs, *spec.index_inputs, *spec.outputs)


def _check_dims(spec: OperationSpec) -> None:
    window_dims = (window.window_dim for window in spec.windows.values())
    for dim in (*spec.splits, *spec.core_order, *spec.masks, *spec.windows, *window_dims):
        _require(dim in spec.extents, spec, f"dim {dim} has no extent", f"{tuple(spec.extents)}")
    for operand in _operands(spec):
        for dim in operand.dims:
            message = f"dim {dim} of a tensor has no extent"
            _require(dim in spec.extents, spec, message, f"{tuple(spec.extents)}")
        for dim, _ in operand.stick:
            message = f"stick dim {dim} is not in the tensor's dims"
            _require(dim in operand.dims, spec, message, f"{operand.dims}")
        known = operand.data_format in FORMATS
        _require(known, spec, f"data format {operand.data_format} is unknown", ", ".join(FORMATS))
    for dim, size in spec.sizes.items():
        equal = spec.extents.get(dim) == size.maximum
        _require(equal, spec, f"extent of dim {dim} is not its maximum", str(size.maximum))
    for dim, split in spec.splits.items():
        whole, parts = spec.extents[dim], split
        if (last := spec.last_extents.get(dim, 0)) and split > 1:
            whole, parts = whole - last, split - 1
        divides = split >= 1 and whole % parts == 0
        message = f"{split} slices do not divide dim {dim}"
        _require(divides, spec, message, f"a divisor of {spec.extents[dim]}")


def _require(condition: bool, spec: OperationSpec, message: str, expected: str) -> None:
    if not condition:
        raise BundleError("SPY290", f"{spec.name}: {message}", expected=expected)


def _core_slices(spec: OperationSpec, slices: Mapping[str, int]) -> tuple[dict[str, int], ...]:
    """Slice index of every core; the first dim of the core order varies fastest (§6.1)."""
    cores = prod(slices.values())
    _require(cores <= MAX_CORES, spec, f"{cores} cores are needed", f"at most {MAX_CORES}")
    order = (*spec.core_order, *(dim for dim in slices if dim not in spec.core_order))
    rows = []
    for core in range(cores):
        quotient, row = core, {}
        for dim in order:
            quotient, row[dim] = divmod(quotient, slices[dim])
        rows.append({dim: row[dim] for dim in slices})
    return tuple(rows)


def _outline(
    spec: OperationSpec, sdsc_name: str, slices: Mapping[str, int], resolve: Resolve | None
) -> Operation:
    """The operation without start addresses. Index tensors are numbered first, outputs last."""
    core_slices = _core_slices(spec, slices)
    bare = Operation(
        name=spec.name, file=sdsc_name, sdsc_name=sdsc_name, dims=tuple(spec.extents),
        extents=dict(spec.extents), cores=tuple(range(len(core_slices))), slices=dict(slices),
        core_slices=core_slices, inputs=(), outputs=(),
        masks={dim: tuple(ranges) for dim, ranges in spec.masks.items() if ranges},
        constants=dict(spec.constants),
        constant_formats=dict.fromkeys(spec.constants, spec.constant_format or spec.data_format),
        data_format=spec.data_format, unit=spec.unit, windows=dict(spec.windows),
        symbolic_dims=_symbolic_dims(spec, resolve), last_extents=dict(spec.last_extents),
    )  # fmt: skip
    tensors = _tensors(spec, bare)
    a, b = len(spec.index_inputs), len(spec.index_inputs) + len(spec.inputs)
    return replace(bare, index_tensors=tensors[:a], inputs=tensors[a:b], outputs=tensors[b:])


def _tensors(spec: OperationSpec, op: Operation) -> tuple[Tensor, ...]:
    operands = (*spec.index_inputs, *spec.inputs, *spec.outputs)
    roles = _roles(spec, operands)
    pairs = _indirect_pairs(spec, operands)
    path = op.sdsc_name, "dscs_", 0, spec.name, "labeledDs_"
    return tuple(
        _tensor(operand, index, json_path((*path, index)), roles[index], pairs.get(index), op)
        for index, operand in enumerate(operands)
    )


def _roles(spec: OperationSpec, operands: Sequence[OperandSpec]) -> list[str]:
    """Given roles stay; the others share a role if they have the same dims and stick."""
    known: dict[tuple[frozenset[str], tuple[tuple[str, int], ...]], str] = {}
    for operand in operands:
        if operand.role:
            known.setdefault(_signature(operand), operand.role)
    free = [role for role in ROLES if role not in {operand.role for operand in operands}]
    for operand in operands:
        if not operand.role and _signature(operand) not in known:
            _require(bool(free), spec, "too many different layouts", f"at most {len(ROLES)}")
            known[_signature(operand)] = free.pop(0)
    return [operand.role or known[_signature(operand)] for operand in operands]


def _signature(operand: OperandSpec) -> tuple[frozenset[str], tuple[tuple[str, int], ...]]:
    return frozenset(operand.dims), operand.stick


def _indirect_pairs(spec: OperationSpec, operands: Sequence[OperandSpec]) -> dict[int, int]:
    """Index of the counterpart of every index and value tensor, paired in order."""
    kinds = Indirection.INDEX, Indirection.VALUE
    numbers = [[i for i, o in enumerate(operands) if o.indirection is kind] for kind in kinds]
    message = "index and value tensors do not pair up"
    _require(len(numbers[0]) == len(numbers[1]), spec, message, "as many of one as of the other")
    pairs = list(zip(*numbers, strict=True))
    return {i: v for i, v in pairs} | {v: i for i, v in pairs}


def _tensor(
    operand: OperandSpec, index: int, path: str, role: str, related: int | None, op: Operation
) -> Tensor:
    """Return the tensor that reading the operand's written file would give.

    Files list all sizes of a kind or none, and omit values without effect.
    """
    sizes, own = operand.device_dim_sizes, operand.own_slices or op.slices
    scale = {dim: operand.scale.get(dim, 1) for dim in operand.dims}
    rows = operand.own_core_slices if any(operand.own_core_slices) else ()
    return Tensor(
        index=index, name=f"Tensor{index}", role=role, component=operand.component,
        data_format=operand.data_format, word_length_bytes=FORMATS[operand.data_format].bits // 8,
        dims=operand.dims, scale=scale, stick_dims=tuple(dim for dim, _ in operand.stick),
        stick_sizes=tuple(size for _, size in operand.stick), starts=(),
        gap_elements={dim: gap for dim, gap in operand.gap.items() if gap},
        device_dim_sizes={d: sizes.get(d, op.extents[d]) for d in operand.dims if sizes},
        max_dim_sizes={dim: operand.max_dim_sizes.get(dim, -1) for dim in operand.dims},
        indirection=operand.indirection, related_tensor=related,
        per_core_in_hbm=operand.per_core_in_hbm, json_path=path,
        padding={d: kind for d, kind in operand.padding.items() if kind is not Padding.NONE},
        own_slices={d: own.get(d, 1) if scale[d] == 1 else 1 for d in operand.dims if rows},
        own_core_slices=rows,
    )  # fmt: skip


def _symbolic_dims(spec: OperationSpec, resolve: Resolve | None) -> dict[str, SymbolicDim]:
    if spec.sizes and resolve is None:
        message = f"runtime size {next(iter(spec.sizes.values())).name} has no symbol"
        raise BundleError("SPY290", message, expected="a bundle builder")
    return {
        dim: SymbolicDim(resolve(size, 0), size.maximum, size.granularity, size.name)
        for dim, size in spec.sizes.items()
        if resolve is not None and size.maximum is not None
    }


# --- start addresses --------------------------------------------------------------------------


def _placed(
    op: Operation,
    tensor: Tensor,
    operand: OperandSpec,
    spec: OperationSpec,
    resolve: Resolve | None,
) -> Tensor:
    """``tensor`` with a start per core: base plus the offset of the core's slice (§5.2)."""
    base, offsets, shifts = operand.base, slice_offsets(op, tensor), _size_shifts(op, tensor, spec)
    if isinstance(base, int):
        message = "a runtime size split over cores moves start addresses"
        _require(not any(shifts), spec, message, "a place in a buffer")
        starts = tuple([base + offset for offset in offsets])
    elif resolve is None:
        message = f"a place in buffer {base.buffer} has no address"
        raise BundleError("SPY290", message, expected="an integer, or a bundle builder")
    else:
        places = [replace(base, shifts=(*own, *base.shifts)) if own else base for own in shifts]
        starts = tuple(map(resolve, places, offsets))
    return replace(tensor, starts=starts, symbolic=min(starts) < 0)


def _size_shifts(
    op: Operation, tensor: Tensor, spec: OperationSpec
) -> tuple[tuple[SizeValue, ...], ...]:
    """Return per core the bytes before its slices of runtime sizes, besides `slice_offsets` (§11).

    Of a dim: the bytes of an element, times the slices before, times ceil(size / slices).
    """
    pitches, sticks = footprint(op, tensor).pitch_bytes, tensor.sticks
    moving = [dim for dim in moving_dims(op, tensor) if dim in op.symbolic_dims]
    shares = {dim: AffineSymbol(0).ceildiv(op.slices[dim]) for dim in moving}
    return tuple(
        tuple(
            SizeValue(row[dim] * pitches[dim] // sticks.get(dim, 1) * shares[dim], (size,))
            for dim in moving
            if row[dim] and (size := spec.sizes[dim])
        )
        for row in op.core_slices
    )
