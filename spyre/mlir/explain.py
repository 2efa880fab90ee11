"""Describes an operation for readers: iteration space, cores, operands in memory, constants.

``explain_operation`` gives the text that ``spyre-run --explain`` prints and golden tests compare.
Reads only the :class:`Operation`. Extents count elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from spyre.dtypes import FORMATS, STICK_BYTES, decode_device
from spyre.mlir.operation import Footprint, Indirection, Operation, Tensor, footprint, index_step

_SHOWN = 4


def explain_operation(op: Operation) -> str:
    """Lines on an operation whose SDSC passed the checks: its dims, windows, operands, constants.

    A tensor's layout lists its dims from the outermost to the innermost, the stick last; its bytes
    are those of the whole tensor in HBM or of one core's in LX, then those from the first to the
    last that one core accesses.
    """
    return "".join(f"{line}\n" for line in _lines(op))


def _lines(op: Operation) -> Iterator[str]:
    yield f"{op.sdsc_name}: {op.name} on {op.unit} in {op.data_format}, {_cores(op.cores)}"
    yield f"  iterates {'; '.join(_dim(op, dim) for dim in op.dims)}"
    for dim, w in op.windows.items():
        spread = f", dilation {w.dilation}" if w.dilation != 1 else ""
        padding = f", padding {w.pad_front} and {w.pad_back}" if w.pad_front or w.pad_back else ""
        head = f"  window {w.window_dim} of {op.extents[w.window_dim]} over {dim}"
        yield f"{head}: stride {w.stride}{spread}{padding}, input {w.total}"
    for tensor in sorted(op.tensors, key=lambda tensor: tensor.index):
        yield f"  {_tensor(op, tensor)}"
    for name, bits in op.constants.items():
        data_format = op.constant_formats[name]
        value = _value(data_format, bits)
        meaning = "" if value is None else f" = {value:g}"
        yield f"  constant {name}{meaning} ({data_format} {bits:#x})"
    if op.symbol_ids:
        yield f"  symbols {_shortened(op.symbol_ids)}"


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


def _dim(op: Operation, dim: str) -> str:
    """One dim of the iteration space: extent in elements, slices, masked elements, its symbol."""
    slices, per_core = op.slices[dim], op.core_extent(dim)
    text = f"{op.extents[dim]}"
    if slices > 1:
        text += f" in {slices} slices of {per_core}"
    if (last := op.last_extents.get(dim, per_core)) != per_core:
        text += f", the last of {last}"
    if masked := sum(count for _, count in op.masks.get(dim, ())):
        text += f", last {masked} masked"
    if (symbolic := op.symbolic_dims.get(dim)) is None:
        return f"{dim} {text}"
    tag = f" {symbolic.tag}" if symbolic.tag else ""
    multiples = f"multiples of {symbolic.granularity}, symbol {symbolic.symbol}{tag}"
    return f"{dim} up to {text} ({multiples})"


def _tensor(op: Operation, tensor: Tensor) -> str:
    area = footprint(op, tensor)
    memory = f"{tensor.component.value.upper()} {tensor.data_format} [{_layout(tensor, area)}]"
    sticks = area.allocation_bytes // STICK_BYTES
    size = f"{area.allocation_bytes} B ({sticks} stick{'s' * (sticks != 1)})"
    facts = f"{memory}, {size}, {area.span_bytes} B per core, {_starts(tensor)}"
    notes = "".join(f"; {note}" for note in _notes(op, tensor))
    return f"{_use(op, tensor)} {tensor.name} ({tensor.role}): {facts}{notes}"


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
    if tensor in op.outputs and any(op.slices[dim] > 1 for dim in op.reduced_dims):
        yield "partial results of several cores are combined"


def _value(data_format: str, bits: int) -> float | None:
    row = FORMATS.get(data_format)
    if row is None or not row.stored:
        return None
    codes = np.array([bits], f"uint{max(8, row.bits)}").view(row.code_dtype)
    return float(decode_device(codes, data_format)[0])
