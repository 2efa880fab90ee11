"""What one operation is, for people: iteration space, cores, operands in memory, constants.

``explain_operation`` gives the facts as a frozen dataclass, ``str()`` of it the text that
``spyre-run --explain`` prints and golden tests compare. Reads only the :class:`Operation`.
Extents count elements, everything named bytes is bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from spyre.dtypes import FORMATS, STICK_BYTES, decode_device
from spyre.mlir.operation import (
    Footprint,
    Indirection,
    Operation,
    SymbolicDim,
    Tensor,
    Window,
    footprint,
    index_step,
)

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class DimExplanation:
    """One dim of the iteration space, in elements; ``padding`` counts the masked ones.

    ``last``: extent of the last slice. ``symbolic``: set where the extent is the largest of many.
    """

    dim: str
    extent: int
    slices: int
    per_core: int
    padding: int
    last: int
    symbolic: SymbolicDim | None = None

    def __str__(self) -> str:
        split = f" in {self.slices} slices of {self.per_core}" if self.slices > 1 else ""
        last = f", the last of {self.last}" if self.last != self.per_core else ""
        masked = f", last {self.padding} masked" if self.padding else ""
        return f"{self.dim} {self._range}{self.extent}{split}{last}{masked}{self._symbol}"

    @property
    def _range(self) -> str:
        return "up to " if self.symbolic else ""

    @property
    def _symbol(self) -> str:
        if self.symbolic is None:
            return ""
        tag = f" {self.symbolic.tag}" if self.symbolic.tag else ""
        return f" (multiples of {self.symbolic.granularity}, symbol {self.symbolic.symbol}{tag})"


@dataclass(frozen=True, slots=True)
class WindowExplanation:
    """A window over the spatial dim ``dim``; ``size`` in elements of the window's dim."""

    dim: str
    size: int
    window: Window

    def __str__(self) -> str:
        w = self.window
        spread = f", dilation {w.dilation}" if w.dilation != 1 else ""
        padding = f", padding {w.pad_front} and {w.pad_back}" if w.pad_front or w.pad_back else ""
        head = f"window {w.window_dim} of {self.size} over {self.dim}"
        return f"{head}: stride {w.stride}{spread}{padding}, input {w.total}"


@dataclass(frozen=True, slots=True)
class TensorExplanation:
    """One operand.

    ``layout`` lists dims from outermost to innermost, the stick last. ``allocation_bytes`` counts
    the whole tensor in HBM, or one core's tensor in LX; ``touched_bytes`` the bytes from the first
    to the last that one core accesses.
    """

    name: str
    use: str
    role: str
    memory: str
    data_format: str
    layout: str
    allocation_bytes: int
    touched_bytes: int
    starts: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        size = f"{self.allocation_bytes} B ({self.allocation_bytes // STICK_BYTES} sticks)"
        notes = "".join(f"; {note}" for note in self.notes)
        head = f"{self.use} {self.name} ({self.role}): {self.memory} {self.data_format}"
        return (
            f"{head} [{self.layout}], {size}, {self.touched_bytes} B per core, {self.starts}{notes}"
        )


@dataclass(frozen=True, slots=True)
class ConstantExplanation:
    """A constant: its bits and the number they mean (None: the format has no values here)."""

    name: str
    data_format: str
    bits: int
    value: float | None

    def __str__(self) -> str:
        meaning = "" if self.value is None else f" = {self.value:g}"
        return f"{self.name}{meaning} ({self.data_format} {self.bits:#x})"


@dataclass(frozen=True, slots=True)
class OperationExplanation:
    """The description of one operation that ``--explain`` prints."""

    sdsc_name: str
    operation: str
    unit: str
    data_format: str
    cores: tuple[int, ...]
    dims: tuple[DimExplanation, ...]
    windows: tuple[WindowExplanation, ...]
    tensors: tuple[TensorExplanation, ...]
    constants: tuple[ConstantExplanation, ...]
    symbol_ids: tuple[int, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def explain_operation(op: Operation) -> OperationExplanation:
    """The explanation of an operation whose SDSC passed the checks."""
    return OperationExplanation(
        sdsc_name=op.sdsc_name,
        operation=op.name,
        unit=op.unit,
        data_format=op.data_format,
        cores=op.cores,
        dims=tuple(_dim(op, dim) for dim in op.dims),
        windows=tuple(
            WindowExplanation(dim, op.extents[window.window_dim], window)
            for dim, window in op.windows.items()
        ),
        tensors=tuple(_tensor(op, tensor) for tensor in sorted(op.tensors, key=_position)),
        constants=tuple(_constant(op, name) for name in op.constants),
        symbol_ids=op.symbol_ids,
    )


def _position(tensor: Tensor) -> int:
    return tensor.index


def _lines(explanation: OperationExplanation) -> Iterator[str]:
    e = explanation
    yield f"{e.sdsc_name}: {e.operation} on {e.unit} in {e.data_format}, {_cores(e.cores)}"
    yield f"  iterates {'; '.join(map(str, e.dims))}"
    for window in e.windows:
        yield f"  {window}"
    for tensor in e.tensors:
        yield f"  {tensor}"
    for constant in e.constants:
        yield f"  constant {constant}"
    if e.symbol_ids:
        yield f"  symbols {_shortened(e.symbol_ids)}"


def _cores(cores: tuple[int, ...]) -> str:
    if len(cores) == 1:
        return f"core {cores[0]}"
    consecutive = cores == tuple(range(cores[0], cores[0] + len(cores)))
    listed = f"{cores[0]}-{cores[-1]}" if consecutive else ", ".join(map(str, cores))
    return f"{len(cores)} cores ({listed})"


def _shortened(values: Iterable[int], form: str = "d") -> str:
    listed = list(values)
    shown = ", ".join(format(value, form) for value in listed[:_SHOWN])
    return shown if len(listed) <= _SHOWN else f"{shown}, … {format(listed[-1], form)}"


def _dim(op: Operation, dim: str) -> DimExplanation:
    padding = sum(count for _, count in op.masks.get(dim, ()))
    per_core = op.core_extent(dim)
    last = op.last_extents.get(dim, per_core)
    symbolic = op.symbolic_dims.get(dim)
    return DimExplanation(dim, op.extents[dim], op.slices[dim], per_core, padding, last, symbolic)


def _tensor(op: Operation, tensor: Tensor) -> TensorExplanation:
    extents = footprint(op, tensor)
    return TensorExplanation(
        name=tensor.name,
        use=_use(op, tensor),
        role=tensor.role,
        memory=tensor.component.value.upper(),
        data_format=tensor.data_format,
        layout=_layout(tensor, extents),
        allocation_bytes=extents.allocation_bytes,
        touched_bytes=extents.span_bytes,
        starts=_starts(tensor),
        notes=tuple(_notes(op, tensor)),
    )


def _use(op: Operation, tensor: Tensor) -> str:
    if tensor in op.outputs:
        return "output"
    return "index" if tensor in op.index_tensors else "input"


def _layout(tensor: Tensor, place: Footprint) -> str:
    """Outermost first, e.g. ``out 4, mb 512, 64 of out``."""
    sticks = dict(zip(tensor.stick_dims, tensor.stick_sizes, strict=True))
    counts = [f"{dim} {-(-place.stored[dim] // sticks.get(dim, 1))}" for dim in tensor.dims]
    stick = [f"{size} of {dim}" for dim, size in sticks.items()]
    return ", ".join([*reversed(counts), *reversed(stick)])


def _starts(tensor: Tensor) -> str:
    distinct = list(dict.fromkeys(tensor.starts))
    if tensor.symbolic:
        return f"start is symbol {_shortened(distinct)}"
    return f"start {_shortened(distinct, '#x')}"


def _notes(op: Operation, tensor: Tensor) -> Iterator[str]:
    absent = [dim for dim in tensor.dims if tensor.scale[dim] == -1]
    lanes = [dim for dim in tensor.dims if tensor.scale[dim] == -2]
    if absent:
        yield f"without {', '.join(absent)}"
    if lanes:
        yield f"one value per stick along {', '.join(lanes)}"
    for dim, kind in tensor.padding.items():
        yield f"{kind.value} along {dim}"
    if tensor.per_core_in_hbm:
        yield "one tensor per core"
    for dim, gap in tensor.gap_elements.items():
        yield f"gap of {gap} along {dim}"
    if tensor.indirection is not Indirection.NONE:
        yield f"{tensor.indirection.value} of Tensor{tensor.related_tensor}"
    if (step := index_step(op, tensor)) is not None and step.page > 1:
        yield f"an index moves {step.page} elements along {step.dim}"
    if tensor.own_core_slices:
        slices = ", ".join(f"{dim} {n}" for dim, n in tensor.own_slices.items() if n > 1)
        yield f"own slices: {slices or 'whole on every core'}"
    if _is_partial(op, tensor):
        yield "partial results of several cores are combined"


def _is_partial(op: Operation, tensor: Tensor) -> bool:
    """True for an output several cores contribute to: a reduced dim is split."""
    reduced = (d for d in op.dims if op.slices[d] > 1 and not tensor.holds(d))
    return tensor in op.outputs and any(any(t.holds(d) for t in op.inputs) for d in reduced)


def _constant(op: Operation, name: str) -> ConstantExplanation:
    data_format, bits = op.constant_formats[name], op.constants[name]
    return ConstantExplanation(name, data_format, bits, _value(data_format, bits))


def _value(data_format: str, bits: int) -> float | None:
    row = FORMATS.get(data_format)
    if row is None or not row.stored:
        return None
    codes = np.array([bits], f"uint{max(8, row.bits)}").view(row.code_dtype)
    return float(decode_device(codes, data_format)[0])
