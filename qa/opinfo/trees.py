"""Functions that change and list the leaves of nested arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to each leaf of ``tree``, which are in lists, tuples, dicts and slices."""
    if isinstance(tree, list):
        return [mapped(item, change) for item in tree]
    if isinstance(tree, tuple):
        items = [mapped(item, change) for item in tree]
        return tuple(items) if type(tree) is tuple else _rebuilt(tree, items)
    if isinstance(tree, dict):
        return {key: mapped(item, change) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(mapped(end, change) for end in (tree.start, tree.stop, tree.step)))
    return change(tree)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of ``tree`` from left to right."""
    if isinstance(tree, slice):
        tree = [tree.start, tree.stop, tree.step]
    elif isinstance(tree, dict):
        tree = list(tree.values())
    elif not isinstance(tree, list | tuple):
        return [tree]
    return [leaf for item in tree for leaf in leaves(item)]


def _rebuilt(like: tuple[Any, ...], items: list[Any]) -> Any:
    """Return a tuple of ``like``'s class: named tuples take fields, torch's types a list."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
