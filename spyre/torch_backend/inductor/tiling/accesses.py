"""Reads of an ir.Operation: the index of each load, and the position in the buffer it refers to.

The checks of tiling use them, and so does `propagate_named_dims`, which carries names of dims from
graph inputs through all operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import sympy

from spyre.torch_backend.inductor.base.compat import MemoryDep, V, compiled_input_index, ir
from spyre.torch_backend.inductor.hints import DimNames

READ_WRITES = "__spyre_read_writes_cache"
"""Attribute of operations; `clear_caches` removes attributes with such names."""


class OperationAccesses(msgspec.Struct, frozen=True):
    """Reads of an operation, and the index expressions that it uses as values.

    ``reads``: per load, ``name`` of the buffer, and ``index`` in host elements from its start.
    ``variables``: one per entry of ranges, then of reduction ranges; None for an extent of 1.
    """

    variables: tuple[sympy.Symbol | None, ...]
    extents: tuple[Any, ...]
    reads: tuple[MemoryDep, ...]
    index_values: tuple[sympy.Expr, ...]


def is_loop_operation(operation: Any) -> bool:
    """Return True for a Pointwise or a Reduction, the operations that can be in a loop."""
    return isinstance(operation, ir.ComputedBuffer) and isinstance(
        operation.data, (ir.Pointwise, ir.Reduction)
    )


def names_read(operation: Any) -> set[str]:
    """Return the buffers an operation reads; ``get_read_names`` lacks those of external calls."""
    return {dep.name for dep in read_writes_of(operation).reads}


def read_writes_of(operation: Any) -> Any:
    """Return ``operation.get_read_writes()``, cached until `clear_caches` is called."""
    if not is_loop_operation(operation):
        return operation.get_read_writes()
    cached = vars(operation).get(READ_WRITES)
    if cached is None:
        cached = operation.get_read_writes()
        object.__setattr__(operation, READ_WRITES, cached)
    return cached


def extents_of(operation: Any) -> tuple[Any, ...]:
    """Return the ranges of an operation, then its reduction ranges."""
    return (*operation.data.get_pointwise_size(), *operation.data.get_reduction_size())


def accesses_of(operation: Any) -> OperationAccesses:
    """Return the accesses of a Pointwise or Reduction, from its body."""
    read_writes = read_writes_of(operation)
    return OperationAccesses(
        tuple(v if isinstance(v, sympy.Symbol) else None for v in read_writes.range_vars),
        extents_of(operation),
        tuple(read for read in read_writes.reads if isinstance(read, MemoryDep)),
        tuple(d.index for d in read_writes.index_exprs),
    )


def layout_of(buffer: str) -> Any:
    """Return the layout of a buffer, graph input or constant; that of the target of a mutation."""
    owner = V.graph.try_get_buffer(buffer)
    layout = None if owner is None else owner.get_output_spec()
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return layout.real_layout()
    return layout if isinstance(layout, ir.Layout) else None


def coefficient(index: sympy.Expr, variable: sympy.Symbol) -> sympy.Expr | None:
    """Return the step of ``index`` per step of ``variable``; None if steps differ."""
    steps = sympy.expand(index).coeff(variable)
    rest = sympy.expand(index - steps * variable)
    if variable in rest.free_symbols or variable in steps.free_symbols:
        return None
    return steps


def coordinates(
    index: sympy.Expr, size: Sequence[Any], stride: Sequence[Any]
) -> list[sympy.Expr] | None:
    """Return the position in a buffer that ``index`` refers to, one expression per dim.

    A term belongs to the dim with the largest stride that divides it; dims of one element are 0.
    None if a term fits no dim. `stays_within` checks that coordinates are within ``size``.
    """
    terms: list[sympy.Expr] = [sympy.S.Zero] * len(size)
    dims = [d for d in range(len(size)) if size[d] != 1 and stride[d] != 0]
    dims.sort(key=lambda d: stride[d], reverse=True)
    for term in sympy.Add.make_args(sympy.expand(index)):
        rest = _add_term(term, dims, stride, terms)
        if rest != 0:
            return None
    return terms


def _add_term(
    term: sympy.Expr, dims: Sequence[int], stride: Sequence[Any], coordinates: list[sympy.Expr]
) -> sympy.Expr:
    """Add ``term`` to ``coordinates``, a constant to several; return the part that fits no dim."""
    factor, atom = term.as_coeff_Mul()
    for dim in dims:
        if not atom.is_number and factor % stride[dim] == 0:
            coordinates[dim] += factor // stride[dim] * atom
            return sympy.S.Zero
        if atom.is_number and factor >= stride[dim]:
            coordinates[dim] += factor // stride[dim]
            factor = factor % stride[dim]
    return factor * atom


def stays_within(
    coordinates: Sequence[sympy.Expr], size: Sequence[Any], accesses: OperationAccesses
) -> bool:
    """Return True if no coordinate leaves its dim, so that it is the element's true position.

    Indices read from tensors are assumed to stay within; functions of variables are not analysed.
    """
    return all(
        _coordinate_stays_within(c, n, accesses) for c, n in zip(coordinates, size, strict=True)
    )


def _coordinate_stays_within(
    coordinate: sympy.Expr, extent: Any, accesses: OperationAccesses
) -> bool:
    last = sympy.S.Zero
    for term in sympy.Add.make_args(coordinate):
        factor, atom = term.as_coeff_Mul()
        if atom.is_number:
            last += term
        elif not isinstance(atom, sympy.Symbol) or factor < 0:
            return False
        else:
            steps = dict(zip(accesses.variables, accesses.extents, strict=True)).get(atom)
            last += 0 if steps is None else factor * (steps - 1)
    return bool(last < extent)


def recombined(
    index: sympy.Expr, size: Sequence[Any], old: Sequence[Any], new: Sequence[Any]
) -> sympy.Expr:
    """Convert ``index`` from a buffer with strides ``old`` to one with strides ``new``."""
    parts = coordinates(index, size, old)
    assert parts is not None, f"{index} was checked against strides {list(old)}"
    return sum((c * s for c, s in zip(parts, new, strict=True)), sympy.S.Zero)


def dims_by_variable(
    read: MemoryDep, accesses: OperationAccesses, layout: Any
) -> Mapping[int, int]:
    """Return, by index in the iteration space, the dim of the buffer that is walked in full."""
    dims = {}
    for axis, variable in enumerate(accesses.variables):
        if variable is None:
            continue
        steps = coefficient(read.index, variable)
        for dim, (extent, stride) in enumerate(zip(layout.size, layout.stride, strict=True)):
            if extent == accesses.extents[axis] and stride == steps and extent != 1:
                dims[axis] = dim
                break
    return dims


_Names = dict[str, list[str | None]]
Known = TypeVar("Known")


def by_graph_input(graph_module: Any, known: Sequence[Known | None]) -> dict[str, Known]:
    """Return ``known``, one entry per argument of ``compile_fx``, by input of the graph that
    ``inner_compile`` gets.

    Inputs of backward graphs have the entry of the input they were saved from; tangents and saved
    intermediates have none.
    """
    by_input = {}
    for node in graph_module.graph.find_nodes(op="placeholder"):
        index = compiled_input_index(node)
        entry = None if index is None or index >= len(known) else known[index]
        if entry is not None:
            by_input[str(node.target)] = entry
    return by_input


def propagate_named_dims(operations: Sequence[Any], input_names: Mapping[str, DimNames]) -> None:
    """Set ``named_dims`` of every Pointwise and Reduction, a tuple with a name or None per axis of
    the iteration space.

    An axis has the name of the dim that it walks from end to end in steps of the dim's stride: of
    the first read with a name, else of a reader of the result. Transposed, broadcast and reduced
    dims keep names; dims that are cut, merged or split lose them.
    """
    if not input_names:
        for op in filter(is_loop_operation, operations):
            op.named_dims = (None,) * len(extents_of(op))
        return
    names: _Names = {buffer: list(dims) for buffer, dims in input_names.items()}
    loops = [(op, accesses_of(op)) for op in operations if is_loop_operation(op)]
    axes = {id(op): [None] * len(accessed.variables) for op, accessed in loops}
    for sweep in (loops, loops[::-1], loops):
        for op, accessed in sweep:
            _carry(op, accessed, axes[id(op)], names)
    for op, _ in loops:
        op.named_dims = tuple(axes[id(op)])


def _carry(operation: Any, accesses: OperationAccesses, axes: list[Any], names: _Names) -> None:
    """Copy names from the operation's buffers to its ``axes``, and from there to the buffers."""
    outputs = len(operation.data.ranges)
    result = names.setdefault(operation.get_name(), [None] * outputs)
    links: list[tuple[int, list[str | None], int]] = []
    for read in accesses.reads:
        layout = layout_of(read.name)
        if layout is None:
            continue
        buffer = names.setdefault(read.name, [None] * len(layout.size))
        links.extend((a, buffer, d) for a, d in dims_by_variable(read, accesses, layout).items())
    links.extend((a, result, a) for a in range(min(outputs, len(result))))
    for axis, buffer, dim in links:
        axes[axis] = axes[axis] or buffer[dim]
    for axis, buffer, dim in links:
        buffer[dim] = buffer[dim] or axes[axis]
