"""What an ir.Operation reads, by its iteration variables, and which element of a buffer that is.

Names of dims, which are carried along reads from graph inputs over all operations
(`propagate_named_dims`), and the checks of tiling are both found from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import sympy

from spyre.torch_backend.inductor.base import MemoryDep, V, compiled_input_index, ir
from spyre.torch_backend.inductor.hints import DimNames

READ_WRITES = "__spyre_read_writes_cache"
"""Attribute of operations, named as those that `clear_caches` removes."""


@dataclass(frozen=True, slots=True)
class BufferRead:
    """One load: the buffer and the index, host elements from its start."""

    buffer: str
    index: sympy.Expr


@dataclass(frozen=True, slots=True)
class OperationAccesses:
    """Reads of an operation, and expressions of variables that it uses as values.

    ``variables``: one per entry of ranges, then of reduction ranges; None for one element.
    """

    variables: tuple[sympy.Symbol | None, ...]
    extents: tuple[Any, ...]
    reads: tuple[BufferRead, ...]
    index_values: tuple[sympy.Expr, ...]

    def extent_of(self, variable: sympy.Symbol) -> Any:
        """Elements ``variable`` runs over; None for what is no variable of the operation."""
        for own, extent in zip(self.variables, self.extents, strict=True):
            if own == variable:
                return extent
        return None


def is_loop_operation(operation: Any) -> bool:
    """True for what walks an iteration space and can be in a loop: Pointwise and Reduction."""
    return isinstance(operation, ir.ComputedBuffer) and isinstance(
        operation.data, (ir.Pointwise, ir.Reduction)
    )


def names_read(operation: Any) -> set[str]:
    """Buffers any operation reads; external calls do not tell by ``get_read_names``."""
    return {dep.name for dep in read_writes_of(operation).reads}


def read_writes_of(operation: Any) -> Any:
    """``operation.get_read_writes()``, found once until `clear_caches` forgets it."""
    if not is_loop_operation(operation):
        return operation.get_read_writes()
    known = vars(operation).get(READ_WRITES)
    if known is None:
        known = operation.get_read_writes()
        object.__setattr__(operation, READ_WRITES, known)
    return known


def extents_of(operation: Any) -> tuple[Any, ...]:
    """Ranges, then reduction ranges of an operation."""
    return (*operation.data.get_pointwise_size(), *operation.data.get_reduction_size())


def accesses_of(operation: Any) -> OperationAccesses:
    """Accesses of a loop operation, by the indices its body makes now."""
    read_writes = read_writes_of(operation)
    return OperationAccesses(
        tuple(v if isinstance(v, sympy.Symbol) else None for v in read_writes.range_vars),
        extents_of(operation),
        tuple(BufferRead(d.name, d.index) for d in read_writes.reads if isinstance(d, MemoryDep)),
        tuple(d.index for d in read_writes.index_exprs),
    )


def layout_of(buffer: str) -> Any:
    """The layout of a buffer, graph input or constant, of the target's where it is mutated."""
    owner = V.graph.try_get_buffer(buffer)
    layout = None if owner is None else owner.get_output_spec()
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return layout.real_layout()
    return layout if isinstance(layout, ir.Layout) else None


def coefficient(index: sympy.Expr, variable: sympy.Symbol) -> sympy.Expr | None:
    """What ``index`` advances by per step of ``variable``; None where steps differ."""
    steps = sympy.expand(index).coeff(variable)
    rest = sympy.expand(index - steps * variable)
    if variable in rest.free_symbols or variable in steps.free_symbols:
        return None
    return steps


def coordinates(
    index: sympy.Expr, size: Sequence[Any], stride: Sequence[Any]
) -> list[sympy.Expr] | None:
    """The position in a buffer that ``index`` is: one expression per dim.

    A term belongs to the dim of the largest stride that divides it; dims of one element are 0.
    None where a term fits no dim. Whether coordinates stay within ``size``: `within_size`.
    """
    terms: list[sympy.Expr] = [sympy.S.Zero] * len(size)
    dims = [d for d in range(len(size)) if size[d] != 1 and stride[d] != 0]
    dims.sort(key=lambda d: stride[d], reverse=True)
    for term in sympy.Add.make_args(sympy.expand(index)):
        rest = _place(term, dims, stride, terms)
        if rest != 0:
            return None
    return terms


def _place(
    term: sympy.Expr, dims: Sequence[int], stride: Sequence[Any], coordinates: list[sympy.Expr]
) -> sympy.Expr:
    """Add ``term`` to coordinates; returns what fits none. A constant is spread over dims."""
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
    """True if no coordinate leaves its dim, so that it is the element's real position.

    Indices read from tensors are taken to stay within; functions of variables are not followed.
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
            steps = accesses.extent_of(atom)
            last += 0 if steps is None else factor * (steps - 1)
    return bool(last < extent)


def recombined(
    index: sympy.Expr, size: Sequence[Any], old: Sequence[Any], new: Sequence[Any]
) -> sympy.Expr:
    """``index`` of a buffer with strides ``old`` as one of a buffer with strides ``new``."""
    parts = coordinates(index, size, old)
    assert parts is not None, f"{index} was checked against strides {list(old)}"
    return sum((c * s for c, s in zip(parts, new, strict=True)), sympy.S.Zero)


def dims_by_variable(
    read: BufferRead, accesses: OperationAccesses, layout: Any
) -> Mapping[int, int]:
    """Dim of the buffer that each place of the iteration space walks in full."""
    dims = {}
    for place, variable in enumerate(accesses.variables):
        if variable is None:
            continue
        steps = coefficient(read.index, variable)
        for dim, (extent, stride) in enumerate(zip(layout.size, layout.stride, strict=True)):
            if extent == accesses.extents[place] and stride == steps and extent != 1:
                dims[place] = dim
                break
    return dims


_Names = dict[str, list[str | None]]
Known = TypeVar("Known")


def by_graph_input(graph_module: Any, known: Sequence[Known | None]) -> dict[str, Known]:
    """By graph input what is ``known`` of the arguments ``compile_fx`` was called with, for the
    graph that ``inner_compile`` is given.

    Inputs of backward graphs are those they were saved from; nothing is known of tangents and
    saved intermediates.
    """
    by_input = {}
    for node in graph_module.graph.find_nodes(op="placeholder"):
        place = compiled_input_index(node)
        given = None if place is None or place >= len(known) else known[place]
        if given is not None:
            by_input[str(node.target)] = given
    return by_input


def propagate_named_dims(operations: Sequence[Any], input_names: Mapping[str, DimNames]) -> None:
    """Set ``named_dims`` of every Pointwise and Reduction, a tuple of names and Nones.

    A place of the iteration space has the name of a dim it walks from end to end in steps of the
    dim's stride: of the first read that has one, else of a consumer of the result. Transposed,
    broadcast and reduced dims keep names; dims that are cut, merged or split lose them.
    """
    if not input_names:
        for op in filter(is_loop_operation, operations):
            op.named_dims = (None,) * len(extents_of(op))
        return
    names: _Names = {buffer: list(given) for buffer, given in input_names.items()}
    loops = [(op, accesses_of(op)) for op in operations if is_loop_operation(op)]
    places = {id(op): [None] * len(accessed.variables) for op, accessed in loops}
    for sweep in (loops, loops[::-1], loops):
        for op, accessed in sweep:
            _carry(op, accessed, places[id(op)], names)
    for op, _ in loops:
        op.named_dims = tuple(places[id(op)])


def _carry(operation: Any, accesses: OperationAccesses, places: list[Any], names: _Names) -> None:
    """Names from what is read and from what others know of the result, and back to both."""
    outputs = len(operation.data.ranges)
    known = names.setdefault(operation.get_name(), [None] * outputs)
    links: list[tuple[int, list[str | None], int]] = []
    for read in accesses.reads:
        layout = layout_of(read.buffer)
        if layout is None:
            continue
        buffer = names.setdefault(read.buffer, [None] * len(layout.size))
        links.extend((p, buffer, d) for p, d in dims_by_variable(read, accesses, layout).items())
    links.extend((p, known, p) for p in range(min(outputs, len(known))))
    for place, buffer, dim in links:
        places[place] = places[place] or buffer[dim]
    for place, buffer, dim in links:
        buffer[dim] = buffer[dim] or places[place]
