"""What the placement of restickifies is given and gives: operations, values, and their lanes.

A layout stands for its lane: the host dim that sticks run along, `SPARSE` where every element has
a stick of its own (as a dim of size 1 along the lanes gives it). Frozen data, for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

SPARSE = -1
"""The lane of a value with one element per stick, such as a sum over sticks."""


class NodeKind(StrEnum):
    """How an operation's output layout binds its inputs."""

    ALL_SAME = "all the same"
    """Pointwise: every input has its lane where the output has it."""
    FIXED_IN_OUT = "fixed"
    """Matmul, reductions: the operation says which lane each input needs."""
    ANY_IN = "any input"
    """Copies: read what there is."""


@dataclass(frozen=True, slots=True)
class Value:
    """A graph input or an operation's output, in each layout it may have.

    ``lanes``: candidates, preferred ones first. ``elements``: how many its device memory holds in
    each of them, stick padding included.
    """

    name: str
    lanes: tuple[int, ...]
    elements: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """An operation and the value it makes."""

    output: Value
    kind: NodeKind
    work: tuple[int, ...] = ()
    """Per layout of the output, elements it computes beyond the fewest; empty: none."""

    @property
    def name(self) -> str:
        """Name of the operation and of its output."""
        return self.output.name


@dataclass(frozen=True, slots=True)
class Edge:
    """One use of a value: operand ``operand`` of ``consumer``.

    ``wanted``: pairs (lane of the consumer's output, lane the producer has to have for it, in the
    producer's own dims); see `wanted_through`. ``shifted``: the view begins within a stick, so
    that no lane fits without moving. ``costs``: elements to be moved, [producer's layout,
    consumer's], from who knows more than these two say.
    """

    producer: str
    consumer: str
    operand: int
    wanted: tuple[tuple[int, int], ...] = ()
    shifted: bool = False
    costs: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Restickify:
    """A copy of ``edge.producer`` with its sticks along ``to_lane`` goes before the consumer."""

    edge: Edge
    from_lane: int
    to_lane: int
    elements: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The lane of every operation's output, what is restickified, and the elements that moves."""

    lanes: Mapping[str, int]
    restickified: tuple[Restickify, ...]
    elements: int

    def why(self) -> str:
        """A line per restickify, or one that says there is none."""
        if not self.restickified:
            return "no restickify: all inputs have their sticks where they are needed"
        return "\n".join(
            f"restickify {r.edge.producer} for operand {r.edge.operand} of {r.edge.consumer}: "
            f"lane {r.from_lane} to {r.to_lane}, {r.elements} elements"
            for r in self.restickified
        )


def wanted_through(axes: Sequence[int | None], lanes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """``Edge.wanted`` of a pointwise use.

    ``axes``: for every dim of the consumer, the producer's dim seen there; None where the producer
    is broadcast. One element per stick serves a lane along which the producer repeats.
    """
    pairs = [(lane, SPARSE if lane == SPARSE else axes[lane]) for lane in lanes]
    return tuple((lane, SPARSE if dim is None else dim) for lane, dim in pairs)


def device_elements(sizes: Sequence[int], lane: int, elements_per_stick: int) -> int:
    """Elements that a value of ``sizes`` holds with its sticks along ``lane``, with padding."""
    if lane == SPARSE:
        return prod(sizes) * elements_per_stick
    sticks = -(-sizes[lane] // elements_per_stick)
    return prod(sizes) // sizes[lane] * sticks * elements_per_stick
