"""`IteratedOp`: an operation over common dims, and its description for the SDSC writer.

Along a common dim every operand has a single pitch: host dims are cut where any operand's pitch
changes, and joined again where all operands allow it.

Dims have the frontends' names: `out` (and `in`) run along lanes, the others are mb, x, y and so on.
A view whose innermost steps are wider than a stick gets a dim of extent 1 below them, with the
width as its stored extent.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES, find_stored_format
from spyre.layout import DeviceView, Factor, split
from spyre.mlir.builder import Base, OperandSpec, OperationSpec, round_up
from spyre.mlir.operation import Component
from spyre.torch_backend.device import usable_cores
from spyre.torch_backend.program.op_spec import LoweringError, OpKind, UnevenDivision

# --- common dims of several views -------------------------------------------------------------


class IterationDim(msgspec.Struct, frozen=True):
    """A common dim. ``factors``: per operand, each of ``extent`` elements. ``role``: only dims of
    equal role are joined.
    """

    extent: int
    factors: tuple[Factor, ...]
    role: int = 0

    def holds(self, operand: int) -> bool:
        """True if the operand is not broadcast along the dim."""
        factor = self.factors[operand]
        return bool(factor.pitch_bytes) or factor.lane


def common_iteration(
    views: Sequence[DeviceView], roles: Sequence[int] | None = None
) -> list[IterationDim]:
    """Dims, outermost first, for views of equal sizes (broadcast ones have pitch 0).

    ``roles``: per host dim. Dims of size 1 are left out. LoweringError if a cut is within the
    sticks of an operand.
    """
    dims: list[IterationDim] = []
    for k, extent in enumerate(views[0].sizes):
        if extent > 1:
            role = roles[k] if roles is not None else 0
            dims += cut(extent, [view.dims[k] for view in views], views, role)
    return _joined(dims)


def cut(
    extent: int, operands: Sequence[tuple[Factor, ...]], views: Sequence[DeviceView], role: int
) -> list[IterationDim]:
    """One dim cut at the factor boundaries of all operands, outermost first.

    LoweringError as of `common_iteration`.
    """
    cuts = {extent}
    for factors in operands:
        inner = 1
        for factor in reversed(factors):
            inner *= factor.extent
            cuts.add(inner)
    ordered = sorted(cuts)
    if any(b % a for a, b in itertools.pairwise(ordered)):
        raise LoweringError(f"factors {operands}")
    pieces = [ordered[0], *(b // a for a, b in itertools.pairwise(ordered))]
    columns = [
        _pieces(factors, pieces, view.elements_per_stick)
        for factors, view in zip(operands, views, strict=True)
    ]
    rows = zip(pieces, zip(*columns, strict=True), strict=True)
    return [IterationDim(n, factors, role) for n, factors in rows][::-1]


def _pieces(factors: Sequence[Factor], pieces: Sequence[int], lanes: int) -> list[Factor]:
    """``factors`` cut into ``pieces``, innermost first."""
    remaining = list(factors)
    columns: list[Factor] = []
    for size in pieces:
        last = remaining.pop()
        if last.extent != size:
            parts = split(last, size, lanes)
            if parts is None:
                raise LoweringError(f"{last} in steps of {size}")
            remaining.append(parts[0])
            last = parts[1]
        columns.append(last)
    return columns


def _joined(dims: list[IterationDim]) -> list[IterationDim]:
    """``dims`` with neighbours joined wherever all operands allow it."""
    dims = list(dims)
    for outer in range(len(dims) - 1, -1, -1):
        for inner in range(len(dims) - 1, -1, -1):
            if inner != outer and _join_fits(dims[outer], dims[inner]):
                dims[inner] = _join(dims[outer], dims[inner])
                del dims[outer]
                break
    return dims


def _join_fits(outer: IterationDim, inner: IterationDim) -> bool:
    if outer.role != inner.role:
        return False
    return all(
        not a.lane and not b.lane and a.pitch_bytes == b.pitch_bytes * inner.extent
        for a, b in zip(outer.factors, inner.factors, strict=True)
    )


def _join(outer: IterationDim, inner: IterationDim) -> IterationDim:
    extent = outer.extent * inner.extent
    factors = tuple(Factor(extent, factor.pitch_bytes) for factor in inner.factors)
    return IterationDim(extent, factors, inner.role)


class ScratchpadPlace(msgspec.Struct, frozen=True):
    """An address in LX, equal on all cores; each core holds its slice of the tensor there, packed.

    ``offset_bytes``: from the start of LX.
    """

    offset_bytes: int


class CoreDivision(msgspec.Struct, frozen=True):
    """A given division of an operation's dims over the cores.

    ``splits``: number of slices by index of the dim. ``order``: dims by how fast their slice index
    varies from core to core, fastest first; dims not listed follow.
    """

    splits: Mapping[int, int] = msgspec.field(default_factory=dict)
    order: Sequence[int] = ()


# --- operations over common dims --------------------------------------------------------------


def core_split(units: int, cores: int) -> int:
    """The largest divisor of ``units`` that is at most ``cores`` (≥ 1)."""
    return max(n for n in range(1, min(units, cores) + 1) if units % n == 0)


def divide(steps: Mapping[str, int]) -> dict[str, int]:
    """Slices per dim, at most SENCORES together.

    ``steps``: number of indivisible units along each dim, the outermost dim first. Dims are divided
    in this order, each by its largest divisor that the remaining cores allow.
    """
    cores = usable_cores()
    slices_by_dim: dict[str, int] = {}
    for dim, count in steps.items():
        slices = core_split(count, cores)
        if slices > 1:
            slices_by_dim[dim] = slices
            cores //= slices
    return slices_by_dim


LANE_NAMES = ("out", "in")
NAMES = ("mb", "x", "y", "i", "j", "ki")
UNIT = "kj"
_CONSTANT_FORMAT = "IEEE_FP32"
"""Constants are written as float32, so that rounding them to 16 bits does not show in results."""


class TensorOperand(msgspec.Struct, frozen=True, dict=True):
    """One tensor of an operation.

    ``number``: its column in the iteration. ``lane``: index of the dim its sticks run along.
    ``rows``: (index of a dim, elements memory has along it) of a tensor read through an index.
    """

    number: int
    format: str
    lane: int
    role: str = ""
    rows: tuple[int, int] | None = None

    @cached_property
    def lanes(self) -> int:
        """Elements of a stick."""
        return find_stored_format(self.format).elements_per_stick


class Outline(msgspec.Struct, frozen=True, dict=True):
    """An SDSC without the addresses of its tensors: operation ``name`` over ``dims``.

    ``multiples``: for each lane dim, by index, the multiple (elements) its extent is rounded up to.
    ``operands``: the output last. ``constants``, ``masks``: as of an `OperationSpec`.
    ``undivided``: dims that the default division leaves whole. ``exact``: in memory, dims other
    than an operand's lane dim have their exact extents, not the rounded ones. ``division``: by
    default, all dims that can be divided are.
    """

    name: str
    dims: Sequence[IterationDim]
    multiples: Mapping[int, int]
    operands: Sequence[TensorOperand]
    constants: Mapping[str, int] = msgspec.field(default_factory=dict)
    masks: Mapping[str, Sequence[tuple[int, int]]] = msgspec.field(default_factory=dict)
    undivided: Sequence[int] = ()
    exact: bool = False
    division: CoreDivision | None = None

    @cached_property
    def names(self) -> list[str]:
        """A name per dim."""
        lanes, free = iter(LANE_NAMES), iter(NAMES)
        if len(self.dims) - len(self.multiples) > len(NAMES):
            outer = len(self.dims) - len(self.multiples)
            raise LoweringError(f"{outer} dims besides the stick, more than {len(NAMES)}")
        return [next(lanes if k in self.multiples else free) for k in range(len(self.dims))]

    @cached_property
    def extents(self) -> dict[str, int]:
        """N_: by name, lane dims rounded up."""
        pairs = enumerate(zip(self.names, self.dims, strict=True))
        return {name: round_up(dim.extent, self.multiples.get(k, 1)) for k, (name, dim) in pairs}

    def stored(self, operand: TensorOperand) -> dict[str, int]:
        """Extents of an operand in memory, innermost first.

        LoweringError if an SDSC cannot express its layout.
        """
        number = operand.number
        walked = self._walked(number)
        if any(self.dims[k].factors[number].lane and k != operand.lane for k in walked):
            raise LoweringError(f"operand {number} has other sticks than the operation")
        along = self.dims[operand.lane].factors[number]
        if operand.lane in walked and along.extent > 1 and not along.lane:
            raise LoweringError(f"operand {number} has no sticks along those of the operation")
        return self._stored(sorted(walked, key=lambda k: self._rank(k, operand)), operand)

    def _walked(self, number: int) -> list[int]:
        return [k for k, dim in enumerate(self.dims) if dim.holds(number)]

    def tensor(self, operand: TensorOperand, base: Base | ScratchpadPlace) -> OperandSpec:
        """An operand, which begins at ``base``, as a tensor of the SDSC."""
        names, stored, component = self.names, self.stored(operand), Component.HBM
        if isinstance(base, ScratchpadPlace):
            stored, base, component = self._shares(stored), base.offset_bytes, Component.LX
        # scale -1: a dim that the tensor lacks; -2: a dim that it lacks except for its sticks
        scale: dict[str, int] = {}
        dims = list(stored)
        if operand.lane not in self._walked(operand.number):
            dims.insert(0, names[operand.lane])
            scale[names[operand.lane]] = -2
        absent = [name for name in names if name not in dims]
        return OperandSpec(
            dims=(*dims, *absent),
            stick=((names[operand.lane], operand.lanes),),
            base=base,
            component=component,
            scale=scale | dict.fromkeys(absent, -1),
            data_format=operand.format,
            device_dim_sizes=stored,
            role=operand.role,
        )

    def _rank(self, dim: int, operand: TensorOperand) -> tuple[int, bool]:
        """Sort key of a dim: its pitch; dims of a single step have none and come first."""
        if self._steps(dim, operand) == 1:
            return 0, dim != operand.lane
        return self.dims[dim].factors[operand.number].pitch_bytes, dim != operand.lane

    def _steps(self, dim: int, operand: TensorOperand) -> int:
        """Steps of a dim in memory: sticks along the operand's lane dim, elements otherwise."""
        if operand.rows is not None and operand.rows[0] == dim:
            return operand.rows[1]
        if dim == operand.lane:
            return -(-self.extents[self.names[dim]] // operand.lanes)
        return self.dims[dim].extent if self.exact else self.extents[self.names[dim]]

    def _stored(self, ordered: Sequence[int], operand: TensorOperand) -> dict[str, int]:
        """Extent in memory of the dims ``ordered`` by pitch, innermost first."""
        # An SDSC has no pitches: a dim's pitch is the product of the stored extents below it. For a
        # larger pitch, the stored extent of the dim below is increased. If there is no such dim, or
        # its stored extent has another meaning, the dim UNIT (extent 1) is inserted.
        stored: dict[str, int] = {}
        below, below_pitch, step, expected = "", STICK_BYTES, 1, STICK_BYTES
        for k in ordered:
            pitch = self._rank(k, operand)[0] or STICK_BYTES
            if pitch != expected:
                if self._is_fixed(below, operand):
                    below, below_pitch, step = UNIT, expected, 1
                if pitch < expected or pitch % below_pitch or (below == UNIT and UNIT in stored):
                    raise LoweringError(f"a pitch of {pitch} bytes over steps of {below_pitch}")
                stored[below] = pitch // below_pitch * step
            below, count = self.names[k], self._steps(k, operand)
            step = operand.lanes if k == operand.lane else 1
            stored[below] = count * step
            below_pitch, expected = pitch, pitch * count
        return stored

    def _shares(self, stored: Mapping[str, int]) -> dict[str, int]:
        """Extents of one core's slice of a tensor in LX."""
        shares = dict(stored)
        for k, slices in (self.division or CoreDivision()).splits.items():
            name = self.names[k]
            if name in shares and slices > 1:
                if shares[name] != self.extents[name]:
                    share = f"{shares[name]} elements in LX"
                    raise UnevenDivision(f"{self.extents[name]} of {share}, in {slices} slices")
                shares[name] //= slices
        return shares

    def _is_fixed(self, below: str, operand: TensorOperand) -> bool:
        """True if the stored extent of ``below`` cannot be increased: there is no such dim, or a
        restickify reads to the end of its stored extent.
        """
        if not below:
            return True
        k = self.names.index(below)
        return self.exact and k in self.multiples and k != operand.lane

    def operation(
        self,
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        unit: str,
        index_inputs: Sequence[OperandSpec],
    ) -> OperationSpec:
        """The complete operation. UnevenDivision if its division splits a step of a dim."""
        extents = dict(self.extents)
        splits = self._splits()
        if any(UNIT in tensor.dims for tensor in (*inputs, *outputs, *index_inputs)):
            extents[UNIT] = 1
            inputs, outputs = [_with_unit(t) for t in inputs], [_with_unit(t) for t in outputs]
            index_inputs = [_with_unit(t) for t in index_inputs]
        return OperationSpec(
            name=self.name,
            extents=extents,
            inputs=inputs,
            outputs=outputs,
            splits=splits,
            core_order=tuple(self.names[k] for k in self.division.order) if self.division else (),
            constants=self.constants,
            masks=self.masks,
            data_format=inputs[0].data_format,
            constant_format=_CONSTANT_FORMAT,
            unit=unit,
            index_inputs=index_inputs,
        )

    def _splits(self) -> dict[str, int]:
        names, extents = self.names, self.extents
        steps = {names[k]: extents[names[k]] // self.multiples.get(k, 1) for k in range(len(names))}
        if self.division is None:
            return divide(
                {n: c for k, (n, c) in enumerate(steps.items()) if k not in self.undivided}
            )
        splits = {names[k]: slices for k, slices in self.division.splits.items() if slices > 1}
        for name, slices in splits.items():
            if steps[name] % slices:
                raise UnevenDivision(f"{slices} slices of {steps[name]} steps")
        return splits


def _with_unit(tensor: OperandSpec) -> OperandSpec:
    """``tensor`` with the dim UNIT, which all tensors of an operation need if one has it."""
    if UNIT in tensor.dims:
        return tensor
    sizes = {**tensor.device_dim_sizes, UNIT: 1}
    return replace(tensor, dims=(UNIT, *tensor.dims), device_dim_sizes=sizes)


def lane_index(dims: Sequence[IterationDim], number: int) -> int:
    """Index of the lane dim of operand ``number``, -1 if it has none."""
    return next((k for k, dim in enumerate(dims) if dim.factors[number].lane), -1)


def unit_lane(operands: int) -> IterationDim:
    """A lane dim of extent 1, for operands whose sticks have one element each."""
    return IterationDim(1, (Factor(1, STICK_BYTES, True),) * operands)


Bases = Sequence[Base | ScratchpadPlace]
"""Addresses of the tensors of an operation, the output last."""


class IteratedOp(msgspec.Struct, frozen=True):
    """An operation over the common dims of its tensors, without their addresses.

    ``name``, ``constants``, ``mask_from``, ``lane_multiple``: as of `DeviceOp`. ``dims``: with the
    roles of `emit_over`. ``formats``: of the tensors, the output last. ``rows``: of a gather's
    table.
    """

    kind: OpKind
    name: str
    dims: Sequence[IterationDim]
    formats: Sequence[str]
    constants: Mapping[str, int] = msgspec.field(default_factory=dict)
    mask_from: int = 0
    lane_multiple: int = 0
    rows: int = 0

    def lanes(self, number: int) -> int:
        """Elements of a stick of tensor ``number``."""
        return find_stored_format(self.formats[number]).elements_per_stick

    @property
    def most_lanes(self) -> int:
        """Elements per stick of the tensor with the most."""
        return max(map(self.lanes, range(len(self.formats))))
