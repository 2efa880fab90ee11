"""Dims that are one and the same in several operations, found from what bodies read.

Where `propagate_named_dims` carries names users gave, this gives every dim a name: all places of
iteration spaces, and dims of buffers, that walk along each other are a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from spyre.torch_backend.inductor.tiling.accesses import (
    accesses_of,
    dims_by_variable,
    is_loop_operation,
    layout_of,
)


@dataclass(frozen=True, slots=True)
class Extent:
    """A dim of an operation: elements, and whether the operation reduces it."""

    elements: int
    is_reduced: bool


_Node = tuple[str, str, int]
ITERATION, BUFFER = "iteration", "buffer"


class _Classes:
    """Disjoint sets of nodes."""

    def __init__(self) -> None:
        self._parents: dict[_Node, _Node] = {}

    def find(self, node: _Node) -> _Node:
        """The node that stands for the class of ``node``."""
        parent = self._parents.setdefault(node, node)
        while parent != node:
            node, parent = parent, self._parents[parent]
        return node

    def join(self, one: _Node, other: _Node) -> None:
        """Both are the same dim."""
        self._parents[self.find(one)] = self.find(other)


def dim_classes(operations: Sequence[Any]) -> dict[str, tuple[str, ...]]:
    """Per Pointwise and Reduction, by name: a class per range, then one per reduction range.

    A class has the name a user gave one of its dims, where there is one, else ``dim0``, ``dim1``, …
    in the order of the operations. Dims that are cut, merged or split begin new classes. Two dims
    of one operation may be of the same class, as those of ``x @ x.T``.
    """
    loops = [op for op in operations if is_loop_operation(op)]
    classes = _Classes()
    for op in loops:
        _join_dims(op, classes)
    names: dict[_Node, str] = {}
    for op in loops:
        for place, given in enumerate(getattr(op, "named_dims", ())):
            if given is not None:
                names.setdefault(classes.find((ITERATION, op.get_name(), place)), given)
    return {op.get_name(): _named(op, classes, names) for op in loops}


def _join_dims(operation: Any, classes: _Classes) -> None:
    name, found = operation.get_name(), accesses_of(operation)
    for place in range(len(operation.data.get_pointwise_size())):
        classes.join((ITERATION, name, place), (BUFFER, name, place))
    for read in found.reads:
        layout = layout_of(read.buffer)
        if layout is None:
            continue
        for place, dim in dims_by_variable(read, found, layout).items():
            classes.join((ITERATION, name, place), (BUFFER, read.buffer, dim))


def _named(operation: Any, classes: _Classes, names: dict[_Node, str]) -> tuple[str, ...]:
    rank = len(accesses_of(operation).variables)
    roots = [classes.find((ITERATION, operation.get_name(), place)) for place in range(rank)]
    return tuple(names.setdefault(root, f"dim{len(names)}") for root in roots)


def dims_of(operation: Any, classes: Mapping[str, Sequence[str]]) -> dict[str, Extent]:
    """The dims of an operation by class, where sizes are numbers; of a class it has twice none."""
    data = operation.data
    places = [(n, False) for n in data.get_pointwise_size()]
    places += [(n, True) for n in data.get_reduction_size()]
    names = classes[operation.get_name()]
    return {
        name: Extent(int(n), is_reduced)
        for name, (n, is_reduced) in zip(names, places, strict=True)
        if names.count(name) == 1 and sympy.sympify(n).is_number
    }
