"""Which execute should have computed a value of the function and did not.

`FirstDivergence` collects a verdict per execute: the known values that its operands agree with.
Three rules name the value that an execute without a known result should have computed, and the
first execute that one of them names is the first wrong one:

1. The graph node of its origin (``debug_handle_``), or the aten operation of that node, has known
   values, and no execute of the node computes one.
2. It copies, and reads a known value.
3. Its origin, if it has one, has no known values, and it reads all operands of a value that no
   execute computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spyre.diagnose.tiles import OperandTile, ReferenceValue, is_constant
from spyre.mlir.operation import RESTICKIFY, Origin
from spyre.runtime.compare import ExecuteView

Values = tuple[ReferenceValue, ...]
COPIES = (RESTICKIFY, "identity")


@dataclass(eq=False)
class ExecuteVerdict:
    """The known values that an execute reads and computes.

    ``reads``: of each input in the first execution, None where its tile cannot be located.
    ``results``: of all executions. ``agreed`` and ``unknown``: number of executions whose result
    was a tile of a known value, and of the others. ``value``: name of the last such value.
    ``written``: the tile of the first result.
    """

    number: int
    operation: str
    sdsc: str
    origin: Origin
    reads: list[Values | None] = field(default_factory=list)
    results: set[ReferenceValue] = field(default_factory=set)
    value: str = ""
    agreed: int = 0
    unknown: int = 0
    deviated: bool = False
    written: tuple[ExecuteView, int, OperandTile] | None = None

    @property
    def read_values(self) -> set[ReferenceValue]:
        """All values that it reads."""
        return {value for values in self.reads for value in values or ()}

    @property
    def is_filled(self) -> bool:
        """True if it wrote equal numbers and read no value."""
        is_equal = self.written is not None and is_constant(self.written[2].values)
        return is_equal and not self.read_values

    def __str__(self) -> str:
        if self.agreed:
            return f"{self.agreed} of {self.agreed + self.unknown} agree with {self.value}"
        names = dict.fromkeys(values[0].name for values in self.reads if values)
        return f"reads {', '.join(names)}; result: no known value" if names else "no known value"


def due_value(
    verdicts: Mapping[int, ExecuteVerdict], known: Sequence[ReferenceValue]
) -> tuple[ExecuteVerdict, Values] | None:
    """The first execute that should have computed a value and did not, with the likely values."""
    every = list(verdicts.values())
    computed = {value for verdict in every for value in verdict.results}
    missing = [value for value in known if value.makers and value not in computed]
    nodes = list(_nodes(every, known))
    named = {id(verdict) for members, _ in nodes for verdict in members}
    others = [verdict for verdict in every if id(verdict) not in named]
    found = (*_of_nodes(nodes), *_of_copies(every), *_of_readers(others, missing))
    order = {id(verdict): k for k, verdict in enumerate(every)}
    return min(found, key=lambda pair: order[id(pair[0])], default=None)


Node = tuple[list[ExecuteVerdict], Sequence[ReferenceValue]]
"""The executes of a graph node, and the values that it may have."""


def _nodes(verdicts: Sequence[ExecuteVerdict], known: Sequence[ReferenceValue]) -> Iterable[Node]:
    by_name: dict[str, list[ReferenceValue]] = {}
    for value in known:
        for name in value.names:
            by_name.setdefault(plain_name(name), []).append(value)
    nodes: dict[str, Node] = {}
    for verdict in verdicts:
        node, aten_op = verdict.origin
        own = by_name.get(plain_name(node), [])
        key = node if own else aten_op
        values = own or by_name.get(plain_name(aten_op), [])
        if values:
            nodes.setdefault(key, ([], values))[0].append(verdict)
    return nodes.values()


def _of_nodes(nodes: Iterable[Node]) -> Iterator[tuple[ExecuteVerdict, Values]]:
    for members, values in nodes:
        if not any(verdict.results.intersection(values) for verdict in members):
            last, unknown = members[-1], [v for v in members if v.written and not v.agreed]
            # Constants fill memory before the node computes, unless nothing else is wrong.
            unknown = [v for v in unknown if not v.is_filled] or unknown
            is_other = last.results - last.read_values
            if not is_other and (unknown or last.written):
                yield (unknown or [last])[0], tuple(values)


def _of_copies(verdicts: Iterable[ExecuteVerdict]) -> Iterator[tuple[ExecuteVerdict, Values]]:
    for verdict in verdicts:
        is_copy = verdict.operation in COPIES and verdict.written is not None
        if is_copy and verdict.read_values and not verdict.agreed:
            yield verdict, tuple(verdict.read_values)


def _of_readers(
    verdicts: Iterable[ExecuteVerdict], missing: Sequence[ReferenceValue]
) -> Iterator[tuple[ExecuteVerdict, Values]]:
    for verdict in verdicts:
        if verdict.written is None or verdict.agreed:
            continue
        read = verdict.read_values
        due = [v for v in missing if any(ops and read.issuperset(ops) for _, ops in v.makers)]
        if due:
            yield verdict, tuple(due)


def plain_name(name: str) -> str:
    """``sum`` for the node ``sum_1`` and for the operation ``aten.sum.dim_IntList``."""
    name = re.sub(r"^(aten|prims)\.", "", name).partition(".")[0]
    return re.sub(r"(_default)?(_\d+)?$", "", name).strip("_")
