"""The work of the cores of one execute, per family of operations: read, compute, round, write.

Cores take their turn in order. Where several cores hold parts of one reduced dim, their float32
partial results are combined in the order of their work slices and written once (SDSC reference
§6.1). The kernels of :mod:`spyre.hw.kernels` do the same fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import NumericRules, find_stored_format
from spyre.hw import spec_choices
from spyre.hw.numerics import Numerics
from spyre.hw.ops import Family, OpDefinition, require_op
from spyre.hw.reference.definitions import (
    COMBINE,
    REDUCE,
    add_all,
    clip,
    constant,
    define,
    sum_in_chunks,
)
from spyre.hw.reference.execution import (
    Execution,
    IndexOutOfRange,
    Int64Array,
    Memory,
    addresses_elsewhere,
    keeps_one_per_stick,
    pitches,
    slice_origin,
    stick_elements,
    stored_elements,
)
from spyre.hw.reference.packed import (
    einsum_formula,
    masked,
    part_of_box,
    run_packed_matmul,
    run_requantize,
    run_windowing,
    sharing_cores,
)
from spyre.layout import arrangement_positions
from spyre.mlir.operation import Indirection, Operation, Tensor

Array = npt.NDArray[Any]
_COLUMNS = 64


def run_reference(
    op: Operation,
    memory: Memory,
    starts: Int64Array,
    numerics: Numerics | None = None,
    arrangements: Sequence[str] = (),
    index_limit: int | None = None,
) -> None:
    """Execute ``op`` once on ``memory``; arguments as in :class:`Execution`.

    Raises UnsupportedError for unknown operations, IndexOutOfRange for a bad index.
    """
    execution = Execution(
        op, memory, starts, numerics or Numerics(), tuple(arrangements), index_limit
    )
    spec = require_op(op, execution.numerics.errata)
    _FAMILIES[spec.family](execution, spec)


# --- elementwise ------------------------------------------------------------------------------


def _elementwise(execution: Execution, spec: OpDefinition) -> None:
    constants = [np.asarray(constant(execution.op, name)) for name in spec.constants]
    for core in execution.cores:
        operands = _operands(execution, spec, core)
        operands[0] = masked(execution, core, operands[0])
        execution.write(core, define(spec.kernel_op, *operands, *constants))


def _operands(execution: Execution, spec: OpDefinition, core: int) -> list[Array]:
    """One array per input; layernormscale reads lanes 0 and 1 of its only one."""
    if spec.kernel_op != "layernormscale":
        return [execution.read(k, core) for k in range(spec.inputs)]
    tensor = execution.op.inputs[0]
    first = execution.addresses(0, core)
    lanes = (first, first + tensor.word_length_bytes)
    return [execution.decode(execution.read_codes(at, tensor), tensor) for at in lanes]


# --- reductions and matmul: cores may share an output -----------------------------------------


def _reduced_axes(op: Operation) -> tuple[int, ...]:
    """Axes of a core's box along which the output does not vary."""
    return tuple(i for i, dim in enumerate(op.dims) if not op.outputs[0].holds(dim))


def _reduction(execution: Execution, spec: OpDefinition) -> None:
    op = execution.op
    chunked = execution.adds_in_chunks and spec.kernel_op in ("sum", "exx2")
    for group in sharing_cores(op):
        inputs = [masked(execution, core, execution.read(0, core)) for core in group]

        def total_of(name: str, values: Sequence[Array], group: list[int] = group) -> Array:
            scale = constant(op, spec.constants[0]) if name == "scaled_sum" else None
            if chunked or scale is not None:
                return _chunked_total(execution, group, values, scale)
            return _total(op, name, values)

        with np.errstate(all="ignore"):
            if spec.kernel_op == "exx2":
                pair = [total_of("sum", xs) for xs in (inputs, [x * x for x in inputs])]
                _write_pair(execution, group[0], _moments(op, spec, pair))
            else:
                total = _ended(op, spec, total_of(spec.kernel_op, inputs))
                execution.write(group[0], np.broadcast_to(total, inputs[0].shape))


def _moments(op: Operation, spec: OpDefinition, sums: Sequence[Array]) -> list[Array]:
    """exx2: scaled sums of x (or 0) and of x²."""
    pair = [total * constant(op, "exx2scale") for total in sums]
    if spec.name == "exx2_zeromean" or op.constants.get("useZeroMean", 0) != 0:
        pair[0] = np.zeros_like(pair[0])
    return pair


def _ended(op: Operation, spec: OpDefinition, total: Array) -> Array:
    """The result of a total: with the scale of `mean`, the scales of quantscale* (our readings)."""
    if spec.name == "quantscalepertoken":
        return total * np.float32(1.0 / spec_choices.TOKEN_MAXIMUM)
    if spec.name == "quantscalepertokenfp8":
        factor, low, high = (np.asarray(constant(op, name)) for name in spec.constants)
        if spec_choices.TOKEN_CLIP == "scale":
            return clip(total * factor, low, high)
        return clip(total, low, high) * factor
    scales = spec.constants and spec.kernel_op != "scaled_sum"
    return total * constant(op, spec.constants[0]) if scales else total


def _total(op: Operation, name: str, inputs: Sequence[Array]) -> Array:
    """Partial results of the cores, exact up to one rounding to float32 each, combined in order.

    A dim that neither side holds does not count twice: only one of its elements is taken.
    """
    combine, along = COMBINE[name]
    taken = (_once_per_element(op, values).astype(np.float64) for values in inputs)
    partials = (along(REDUCE[name](elements), axis=_reduced_axes(op)) for elements in taken)
    return np.asarray(reduce(combine, (partial.astype(np.float32) for partial in partials)))


def _chunked_total(
    execution: Execution, group: Sequence[int], inputs: Sequence[Array], scale: np.float32 | None
) -> Array:
    """Elements of each core in order of their addresses, added up in chunks; then the cores.

    ``scale``: of `CARD_FORMS` "scaled-means", which adds scaled elements per lane in DL16.
    """
    op, rules = execution.op, execution.numerics.alu_rules
    axes = _reduced_axes(op)
    totals = []
    for core, values in zip(group, inputs, strict=True):
        where, taken = (
            np.moveaxis(_once_per_element(op, x), axes, range(len(axes)))
            for x in (execution.addresses(0, core), values)
        )
        count = int(np.prod(taken.shape[: len(axes)]))
        first = where.reshape(count, -1)[:, 0]
        order = np.argsort(first, kind="stable")
        terms, lane = taken.reshape(count, *taken.shape[len(axes) :])[order], first[order] % 128
        if scale is None:
            totals.append(sum_in_chunks(terms, rules))
        else:
            lanes = (add_all(terms[lane == at] * scale, rules) for at in np.unique(lane))
            totals.append(np.stack(list(lanes)))
    if scale is None:
        return np.expand_dims(add_all(totals, rules), axes)
    total = reduce(np.add, totals)
    while (half := len(total) // 2) > 0:
        total = total[:half] + total[half:]
    return np.expand_dims(total[0], axes)


def _once_per_element(op: Operation, values: Array) -> Array:
    held = [op.inputs[0].holds(dim) or op.outputs[0].holds(dim) for dim in op.dims]
    return values[tuple(slice(None) if h else slice(0, 1) for h in held)]


def _write_pair(execution: Execution, core: int, pair: Sequence[Array]) -> None:
    """exx2: even lanes hold s·Σx, odd lanes s·Σx² (operations reference §4)."""
    tensor = execution.op.outputs[0]
    addresses = execution.addresses(execution.output, core)
    for lane in range(stick_elements(tensor, tensor.stick_dims[0])):
        unused = spec_choices.EXX2_LANES == "first" and lane > 1
        codes = execution.encode(np.zeros_like(pair[0]) if unused else pair[lane % 2], tensor)
        at = addresses + lane * tensor.word_length_bytes
        execution.write_codes(at, np.broadcast_to(codes, at.shape), tensor)


def _matmul(execution: Execution, spec: OpDefinition) -> None:
    op = execution.op
    formula, rules = einsum_formula(op, 2), execution.numerics.alu_rules
    for group in sharing_cores(op):
        parts = [[_held_part(execution, k, core) for k in (0, 1)] for core in group]
        if execution.adds_in_chunks:
            total = add_all((_chunked_product(formula, a, b, rules) for a, b in parts), rules)
        else:
            with np.errstate(all="ignore"):
                total = reduce(np.add, [_product(formula, a, b) for a, b in parts])
        held = [op.outputs[0].holds(dim) for dim in op.dims]
        wide = total[tuple(slice(None) if h else None for h in held)]
        execution.write(group[0], np.broadcast_to(wide, execution.local[op.dims[0]].shape))


def _product(formula: str, a: Array, b: Array) -> Array:
    """Einstein sum, exact up to one rounding to float32."""
    wide = np.einsum(formula, a.astype(np.float64), b.astype(np.float64), optimize=True)
    return np.asarray(wide.astype(np.float32))


def _chunked_product(formula: str, a: Array, b: Array, rules: NumericRules) -> Array:
    """The same with one k after another, float32 products added up in chunks."""
    left, right = formula.split("->")[0].split(",")
    (k,) = set(left) & set(right) - set(formula.split("->")[1])
    with np.errstate(all="ignore"):
        terms = (
            np.einsum(formula.replace(k, ""), x, y)
            for x, y in zip(
                np.moveaxis(a, left.index(k), 0), np.moveaxis(b, right.index(k), 0), strict=True
            )
        )
        return sum_in_chunks(terms, rules)


def _held_part(execution: Execution, operand: int, core: int) -> Array:
    """An operand over the dims it holds, in the operation's order of dims."""
    tensor = execution.op.tensors[operand]
    part = part_of_box(execution.op, operand)
    local = {dim: coordinate[part] for dim, coordinate in execution.local.items()}
    addresses = execution.addresses(operand, core, local)
    return execution.decode(execution.read_codes(addresses, tensor), tensor)


# --- data movement ----------------------------------------------------------------------------


def _copy(execution: Execution, spec: OpDefinition) -> None:
    source, target = execution.op.inputs[0], execution.op.outputs[0]
    for core in execution.cores:
        if execution.op.index_tensors:
            _copy_indirect(execution, core)
        elif keeps_one_per_stick(source) and keeps_one_per_stick(target):
            _copy_sticks(execution, core)
        else:
            codes = execution.read_codes(execution.addresses(0, core), source)
            execution.write_sticks(core, codes)


def _copy_sticks(execution: Execution, core: int) -> None:
    """Between two tensors of one stick per element, all lanes are copied as they are."""
    source, target = execution.op.inputs[0], execution.op.outputs[0]
    for lane in range(stick_elements(target, target.stick_dims[0])):
        move = lane * target.word_length_bytes
        codes = execution.read_codes(execution.addresses(0, core) + move, source)
        execution.write_codes(execution.addresses(execution.output, core) + move, codes, target)


def _copy_indirect(execution: Execution, core: int) -> None:
    """Gather or scatter: the index replaces the coordinates of its dims (§6.4)."""
    op = execution.op
    if op.index_steps:
        _move_indirect(execution, core)
        return
    limit = np.iinfo(np.int64).max if execution.index_limit is None else execution.index_limit
    index = _checked_index(execution, 1, execution.addresses(1, core), limit)
    addresses = []
    for operand in (0, execution.output):
        tensor = op.tensors[operand]
        if tensor.indirection is Indirection.VALUE:
            addresses.append(_indexed_addresses(execution, operand, core, index))
        else:
            addresses.append(execution.addresses(operand, core))
    codes = execution.read_codes(addresses[0], op.inputs[0])
    execution.write_codes(addresses[1], codes, op.outputs[0])


def _move_indirect(execution: Execution, core: int) -> None:
    """A move by elements: every index tensor counts steps of bytes in the value tensor."""
    op = execution.op
    places = [execution.addresses(operand, core) for operand in range(len(op.tensors))]
    value = next(k for k, t in enumerate(op.tensors) if t.indirection is Indirection.VALUE)
    for operand, (step, count) in enumerate(op.index_steps, 1):
        index = _checked_index(execution, operand, places[operand], count)
        places[value] = places[value] + index * step
    codes = execution.read_codes(places[0], op.inputs[0])
    execution.write_codes(places[-1], codes, op.outputs[0])


def _checked_index(
    execution: Execution, operand: int, addresses: Int64Array, limit: int
) -> Int64Array:
    """The elements of an index tensor, each at least 0 and below ``limit``."""
    words = execution.read_codes(addresses, execution.op.tensors[operand])
    index = words.astype(np.int32).astype(np.int64)
    bad = (index < 0) | (index >= limit)
    if bad.any():
        raise IndexOutOfRange(int(index[bad][0]))
    return index


def _indexed_addresses(
    execution: Execution, operand: int, core: int, index: Int64Array
) -> Int64Array:
    """Index times page size along the dim it counts along; the indexed dims do not count."""
    op = execution.op
    tensor = op.tensors[operand]
    dims = _indexed_dims(tensor, op.index_tensors[0])
    if dims:
        counted, page = dims[0], max(tensor.max_dim_sizes.get(dims[0], 1), 1)
    else:
        counted, page = _page(tensor)
    local = {d: np.zeros_like(c) if d in dims else c for d, c in execution.local.items()}
    sticks = page / stick_elements(tensor, counted)
    step = int(sticks * pitches(op, tensor)[counted])
    return execution.addresses(operand, core, local) + index * step


def _indexed_dims(value: Tensor, index: Tensor) -> list[str]:
    shared = [dim for dim in value.dims if index.holds(dim)]
    return [dim for dim in shared if value.max_dim_sizes.get(dim, -1) > 0] or shared


def _page(value: Tensor) -> tuple[str, int]:
    """The dim of pages of a value tensor without its index tensor's dims, and their size."""
    (paged,) = ((d, n) for d, n in value.max_dim_sizes.items() if n > 0 and value.holds(d))
    return paged


def _convert(execution: Execution, spec: OpDefinition) -> None:
    source, target = execution.op.inputs[0], execution.op.outputs[0]
    for core in execution.cores:
        places = [_arranged(execution, operand, core) for operand in (0, execution.output)]
        values = execution.decode(execution.read_codes(places[0], source), source)
        if keeps_one_per_stick(target):
            execution.write(core, values)
        else:
            execution.write_codes(places[1], execution.encode(values, target), target)


def _arranged(execution: Execution, operand: int, core: int) -> Int64Array:
    """Addresses of a tensor with columns permuted in groups of 64 (operations reference §6)."""
    place = arrangement_positions(execution.arrangement(operand))
    stick_dim = execution.op.tensors[operand].stick_dims[0]
    column = execution.local[stick_dim]
    moved = column // _COLUMNS * _COLUMNS + place[column % _COLUMNS]
    return execution.addresses(operand, core, {**execution.local, stick_dim: moved})


def _restickify(execution: Execution, spec: OpDefinition) -> None:
    """Elements beyond the source's extents read as 0, beyond the target's are dropped (§7)."""
    source, target = execution.op.inputs[0], execution.op.outputs[0]
    for core in execution.cores:
        exists = _is_stored(execution, 0, core)
        stored = _is_stored(execution, execution.output, core)
        codes = np.zeros(exists.shape, find_stored_format(source.data_format).code_dtype)
        if exists.any():
            codes[exists] = execution.read_codes(execution.addresses(0, core)[exists], source)
        if stored.any():
            addresses = execution.addresses(execution.output, core)[stored]
            execution.write_codes(addresses, codes[stored], target)


def _is_stored(execution: Execution, operand: int, core: int) -> npt.NDArray[np.bool_]:
    """Where the tensor has memory for an element; sticks are always whole."""
    op, tensor = execution.op, execution.op.tensors[operand]
    origin = slice_origin(op, core)
    stored = np.ones(execution.local[op.dims[0]].shape, np.bool_)
    for dim in tensor.dims:
        if not tensor.holds(dim):
            continue
        coordinate = execution.local[dim] + (0 if tensor.is_local else origin[dim])
        size = stick_elements(tensor, dim)
        stored &= coordinate < -(-stored_elements(op, tensor, dim) // size) * size
    return stored


# --- top-k ------------------------------------------------------------------------------------


def _topk(execution: Execution, spec: OpDefinition) -> None:
    """The k largest along the dim only the input has, falling."""
    op = execution.op
    source, target = op.inputs[0], op.outputs[0]
    reduced = next(i for i, d in enumerate(op.dims) if source.holds(d) and not target.holds(d))
    added = next(i for i, d in enumerate(op.dims) if target.holds(d) and not source.holds(d))
    share = op.core_extent(op.dims[added])
    for core in execution.cores:
        values = execution.read(0, core).take([0], axis=added)
        order = _falling_order(values, reduced)
        sorted_values = np.take_along_axis(values, order, axis=reduced)
        result = order if spec.kernel_op == "index" else sorted_values
        first = op.core_slices[core].get(op.dims[added], 0) * share
        ranked = result.take(range(first, first + share), axis=reduced)
        wide = np.swapaxes(ranked, reduced, added)
        execution.write(core, np.broadcast_to(wide, execution.local[op.dims[0]].shape))


def _falling_order(values: Array, axis: int) -> Int64Array:
    """Positions in falling order of values; equal ones in the order of ``TOPK_TIES``."""
    if spec_choices.TOPK_TIES == "lowest":
        return np.asarray(np.argsort(-values, axis=axis, kind="stable"))
    turned = np.argsort(-np.flip(values, axis), axis=axis, kind="stable")
    return np.asarray(values.shape[axis] - 1 - turned)


def run_shuffle(execution: Execution, spec: OpDefinition) -> None:
    """Copy every element of every core's box of the output from the core that holds it.

    All elements are read before any is written: cores do not wait for each other.
    """
    op = execution.op
    source, target = op.inputs[0], op.outputs[0]
    boxes = list(computed_boxes(op))
    codes = [
        execution.read_codes(addresses_elsewhere(op, execution.starts, 0, core, box), source)
        for core, box in boxes
    ]
    for (core, box), values in zip(boxes, codes, strict=True):
        addresses = addresses_elsewhere(op, execution.starts, execution.output, core, box)
        execution.write_codes(addresses, values, target)


def computed_boxes(op: Operation) -> Iterator[tuple[int, dict[str, Int64Array]]]:
    """Position of every working core, and the global coordinates of the elements it writes."""
    output = op.outputs[0]
    slices, rows = output.own_slices or op.slices, output.own_core_slices or op.core_slices
    for core, row in enumerate(rows):
        if row:
            extents = [op.extents[dim] // slices.get(dim, 1) for dim in op.dims]
            grid = np.indices(extents, dtype=np.int64)
            first = [row.get(dim, 0) * e for dim, e in zip(op.dims, extents, strict=True)]
            yield core, {d: grid[k] + first[k] for k, d in enumerate(op.dims)}


_FAMILIES: dict[Family, Callable[[Execution, OpDefinition], None]] = {
    Family.ELEMENTWISE: _elementwise,
    Family.REDUCTION: _reduction,
    Family.COPY: _copy,
    Family.CONVERT: _convert,
    Family.RESTICKIFY: _restickify,
    Family.MATMUL: _matmul,
    Family.TOPK: _topk,
    Family.PACKED_MATMUL: run_packed_matmul,
    Family.REQUANTIZE: run_requantize,
    Family.WINDOWING: run_windowing,
    Family.SHUFFLE: run_shuffle,
}
