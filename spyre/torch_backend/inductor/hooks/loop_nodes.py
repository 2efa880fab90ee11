"""`CountedLoopSchedulerNode` and the pass that builds them around stamped operations.

The first pass after fusion, before bundles are formed: what shares a loop then is one node, which
nothing is fused into and which one ``codegen_node`` call receives whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.base import FusedSchedulerNode


class CountedLoopSchedulerNode(FusedSchedulerNode):  # type: ignore[misc]
    """A loop around scheduler nodes, some of which may be loops themselves.

    ``loop_count``: how often the body runs. Belongs to one scheduler, so to one thread.
    """

    loop_count: sympy.Expr

    def __init__(self, scheduler: Any, snodes: list[Any], loop_count: Any) -> None:
        super().__init__(scheduler, snodes)
        self.loop_count = sympy.sympify(loop_count)

    @classmethod
    def create(cls, snodes: Sequence[Any], loop_count: Any) -> CountedLoopSchedulerNode:
        """A loop around ``snodes``; all nodes in it are known to the scheduler by it."""
        scheduler = snodes[0].scheduler
        loop = cls(scheduler, list(snodes), loop_count)
        for node in (loop, *snodes, *leaf_nodes(loop)):
            scheduler.name_to_fused_node[node.get_name()] = loop
        return loop

    def unpack(self) -> list[Any]:
        """Itself: a loop is generated as a whole."""
        return [self]

    @classmethod
    def can_fuse(cls, producer: Any, consumer: Any) -> bool:
        """Never."""
        return False


def leaf_nodes(node: Any) -> Iterator[Any]:
    """The scheduler nodes of operations in ``node``, in program order."""
    if not isinstance(node, FusedSchedulerNode):
        yield node
        return
    for part in node.snodes:
        yield from leaf_nodes(part)


def build_loop_scheduler_nodes(nodes: Sequence[Any]) -> list[Any]:
    """``nodes`` with every run of one loop group in a CountedLoopSchedulerNode, loops nested.

    SpyreError SPY971 if the nodes of a group do not follow each other, SPY972 if nodes of a loop
    disagree on its count.
    """
    return _build(list(nodes), 0)


def _build(nodes: list[Any], depth: int) -> list[Any]:
    """The nodes of one loop body; those with a path beyond ``depth`` are in inner loops."""
    built: list[Any] = []
    seen: set[int] = set()
    place = 0
    while place < len(nodes):
        key = _key(nodes[place], depth)
        if key is None:
            built.append(nodes[place])
            place += 1
            continue
        if key in seen:
            raise _torn(nodes, depth, key)
        seen.add(key)
        run = [nodes[place]]
        while place + len(run) < len(nodes) and _key(nodes[place + len(run)], depth) == key:
            run.append(nodes[place + len(run)])
        place += len(run)
        count = _count(run, depth)
        built.append(CountedLoopSchedulerNode.create(_build(run, depth + 1), count))
    return built


def _loop_group_id(node: Any) -> tuple[int, ...]:
    """The path of a node's operations; empty outside of loops."""
    groups = {tuple(getattr(leaf.node, "loop_group_id", ())) for leaf in leaf_nodes(node)}
    if len(groups) > 1:
        raise SpyreError(
            "SPY971",
            f"node {node.get_name()} holds operations of several loop groups",
            expected="loop nodes are built before nodes are fused",
            found=", ".join(map(str, sorted(groups))),
        )
    return groups.pop()


def _key(node: Any, depth: int) -> int | None:
    path = _loop_group_id(node)
    return path[depth] if len(path) > depth else None


def _torn(nodes: Sequence[Any], depth: int, key: int) -> SpyreError:
    members = [n.get_name() for n in nodes if _key(n, depth) == key]
    order = [n.get_name() for n in nodes]
    first, last = order.index(members[0]), order.index(members[-1])
    between = [name for name in order[first:last] if name not in members]
    return SpyreError(
        "SPY971",
        f"the scheduler has torn loop group {key} at depth {depth}",
        expected="its nodes one after the other",
        found=f"{', '.join(between)} between {', '.join(members)}",
        hint="an operation of the group depends on one outside that depends on the group",
    )


def _count(run: Sequence[Any], depth: int) -> Any:
    leaves = [leaf for node in run for leaf in leaf_nodes(node)]
    counts = [next(iter(leaf.node.loop_count[depth:]), None) for leaf in leaves]
    if None in counts or any(count != counts[0] for count in counts):
        raise SpyreError(
            "SPY972",
            f"operations of one loop disagree on its count at depth {depth}",
            expected="one count",
            found=", ".join(
                f"{leaf.node.get_name()}: {count}"
                for leaf, count in zip(leaves, counts, strict=True)
            ),
        )
    return counts[0]
