"""Disjoint sets (union-find) over hashable nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)


class DisjointSets(Generic[N]):
    """A partition of nodes; an unknown node is a set of one. For one thread."""

    def __init__(self) -> None:
        self._parents: dict[N, N] = {}

    def find(self, node: N) -> N:
        """The representative of the set that contains ``node``."""
        root = self._parents.setdefault(node, node)
        while root != self._parents[root]:
            root = self._parents[root]
        while node != root:  # path compression
            self._parents[node], node = root, self._parents[node]
        return root

    def join(self, one: N, other: N) -> None:
        """Merge the sets of two nodes."""
        self._parents[self.find(other)] = self.find(one)

    def sets(self) -> Iterator[tuple[N, ...]]:
        """All sets, with members in order of first appearance."""
        members: dict[N, list[N]] = {}
        for node in list(self._parents):
            members.setdefault(self.find(node), []).append(node)
        yield from map(tuple, members.values())
