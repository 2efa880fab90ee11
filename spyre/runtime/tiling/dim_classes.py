"""Sets of dims that are one dim of the kernel: a union-find whose sets carry remarks.

Elements are host dims of arguments and dims of execute statements. Used by :mod:`.kernel_dims`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class ArgumentDim:
    """Host dim ``host_dim`` of argument ``arg_index``."""

    arg_index: int
    host_dim: int


@dataclass(frozen=True, slots=True, order=True)
class ExecuteDim:
    """Dim ``dim`` of execute statement ``execute``."""

    execute: int
    dim: str


Node = ArgumentDim | ExecuteDim


@dataclass
class DimClasses:
    """Union-find over nodes. ``fixed``: why a node's class cannot be tiled, the first reason
    given; ``reduced``: the operation that reduces it. Not thread-safe: it lives in one call.
    """

    parents: dict[Node, Node] = field(default_factory=dict)
    fixed: dict[Node, str] = field(default_factory=dict)
    reduced: dict[Node, str] = field(default_factory=dict)

    def find(self, node: Node) -> Node:
        """The node that stands for the class of ``node``."""
        parent = self.parents.setdefault(node, node)
        if parent == node:
            return node
        root = self.find(parent)
        self.parents[node] = root
        return root

    def join(self, one: Node, other: Node) -> None:
        """Both are the same dim."""
        self.parents[self.find(other)] = self.find(one)

    def fix(self, node: Node, reason: str) -> None:
        """The class of ``node`` cannot be tiled."""
        self.find(node)
        self.fixed.setdefault(node, reason)

    def reduce(self, node: Node, operation: str) -> None:
        """``operation`` reduces the class of ``node``."""
        self.find(node)
        self.reduced.setdefault(node, operation)

    def classes(self) -> Iterator[tuple[Node, ...]]:
        """All classes, members in order of their first appearance."""
        found: dict[Node, list[Node]] = {}
        for node in list(self.parents):
            found.setdefault(self.find(node), []).append(node)
        yield from map(tuple, found.values())

    def remark(self, members: tuple[Node, ...], remarks: dict[Node, str]) -> str:
        """The first of ``remarks`` on one of ``members``, or ''."""
        return next((remarks[node] for node in members if node in remarks), "")
