"""`DisjointSets`: a union-find over hashable nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class DisjointSets(Generic[Node]):
    """Disjoint sets of nodes; a node is in a set of one until it is joined. Not thread-safe."""

    def __init__(self) -> None:
        self._parents: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        """Return the representative of the set that ``node`` is in."""
        root = self._parents.setdefault(node, node)
        while (parent := self._parents[root]) != root:
            root = parent
        while node != root:
            self._parents[node], node = root, self._parents[node]
        return root

    def join(self, one: Node, other: Node) -> None:
        """Join the sets of two nodes; the representative of the first stays."""
        self._parents[self.find(other)] = self.find(one)

    def sets(self) -> Iterator[tuple[Node, ...]]:
        """Yield all sets, nodes in the order of their first appearance."""
        members: dict[Node, list[Node]] = {}
        for node in list(self._parents):
            members.setdefault(self.find(node), []).append(node)
        yield from map(tuple, members.values())
