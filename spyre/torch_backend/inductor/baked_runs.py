"""Runs of operations cut into bundles whose addresses can be baked in.

A baked bundle names its arguments by segments, of which tensors may use seven, one of them for the
pool (hardware reference §4.6, bundle format reference §3.2). Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spyre.errors import UnsupportedError
from spyre.mlir.bundle_builder import MAX_SEGMENTS


def cut_to_segments(
    run: Sequence[Any], segments: Callable[[Sequence[Any]], int], limit: int = MAX_SEGMENTS
) -> list[list[Any]]:
    """``run`` in pieces, each as long as fits, in order.

    ``run``: scheduler nodes. ``segments``: how many the bundle of such nodes needs. A piece may
    need fewer than a part of it, as what is read within is no argument, but never fewer than
    tensors it reads from outside. UnsupportedError SPY967 for a node that needs too many alone.
    """
    rest, found = list(run), []
    while rest:
        count = _longest(rest, segments, limit)
        if not count:
            raise _too_many(rest[0], segments(rest[:1]), limit)
        found.append(rest[:count])
        rest = rest[count:]
    return found


def _longest(nodes: Sequence[Any], segments: Callable[[Sequence[Any]], int], limit: int) -> int:
    """How many of the first ``nodes`` fit together, 0 if not even one does."""
    if segments(nodes) <= limit:
        return len(nodes)
    read: set[str] = set()
    made: set[str] = set()
    longest = 0
    for count, node in enumerate(nodes, 1):
        read |= {dep.name for dep in node.read_writes.reads} - made
        made |= set(node.get_buffer_names())
        if len(read) > limit:
            break
        if segments(nodes[:count]) <= limit:
            longest = count
    return longest


def _too_many(node: Any, found: int, limit: int) -> UnsupportedError:
    return UnsupportedError(
        "SPY967",
        f"{node.get_name()} takes more tensors and numbers than a bundle of baked addresses can",
        expected=f"at most {limit}, the pool of intermediate results among them",
        found=str(found),
        hint="leave bundle_symbolic_args (BUNDLE_SYMBOLIC_ARGS) on",
    )
