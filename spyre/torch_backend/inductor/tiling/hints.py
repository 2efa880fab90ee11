"""`spyre_hint`: which dims to tile, and among how many cores to divide them, said in user code.

``with spyre_hint(slices={"A": 2}):`` inside a compiled function marks the operations of its block:
each gets an entry in ``node.meta["custom"]``, which AOTAutograd and decompositions carry on. Every
entered block has a number of its own, rising from the outermost one inwards. Loads nothing of
Inductor.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.traceback import annotate

from spyre.errors import SpyreError

PREFIX = "spyre_hint:"
_scope_numbers = itertools.count()


@dataclass(frozen=True, slots=True, order=True)
class HintScope:
    """One entered ``with spyre_hint(…)`` block.

    ``slices``: (dim name, number of tiles), one loop each, the outermost first. ``work_div``:
    (dim name, number of cores). Scopes sort as they nest.
    """

    number: int
    slices: tuple[tuple[str, int], ...]
    work_div: tuple[tuple[str, int], ...]


def spyre_hint(
    slices: Mapping[str, int] | None = None,
    *,
    num_tiles_per_dim: Mapping[str, int] | None = None,
    work_div: Mapping[str, int] | None = None,
) -> contextlib.AbstractContextManager[None]:
    """A block whose operations are tiled, or divided among cores, along named dims.

    ``slices={"A": 2, "B": 4}``: a loop of 2 over tiles of dim A, in it one of 4 over tiles of B;
    nested blocks nest their loops likewise. ``num_tiles_per_dim`` is the same by another name.
    ``work_div={"A": 8}``: 8 cores share dim A. Outside of compiled functions the block does
    nothing. SpyreError SPY975 for anything else than non-empty mappings of names to positive ints.
    """
    if not torch.compiler.is_compiling():
        _entry(slices, num_tiles_per_dim, work_div)
        return contextlib.nullcontext()
    entry = _trace_entry(slices, num_tiles_per_dim, work_div)
    found: contextlib.AbstractContextManager[None] = annotate(entry)
    return found


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _trace_entry(*arguments: Mapping[str, int] | None) -> dict[str, Any]:
    """The entry of ``meta["custom"]``; runs while Dynamo traces, never in compiled code."""
    return {f"{PREFIX}{next(_scope_numbers)}": _entry(*arguments)}


def _entry(
    slices: Mapping[str, int] | None,
    num_tiles_per_dim: Mapping[str, int] | None,
    work_div: Mapping[str, int] | None,
) -> dict[str, dict[str, int]]:
    if slices is not None and num_tiles_per_dim is not None:
        raise _wrong("slices and num_tiles_per_dim are the same; give one of them", "both")
    tiles = slices if slices is not None else num_tiles_per_dim
    if tiles is None and work_div is None:
        raise _wrong("spyre_hint needs slices or work_div", "neither")
    given = {"slices": tiles, "work_div": work_div}
    return {key: _checked(key, value) for key, value in given.items() if value is not None}


def _checked(key: str, value: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(value, Mapping) or not value:
        raise _wrong(f"{key} maps names of dims to numbers", repr(value))
    for name, number in value.items():
        is_number = isinstance(number, int) and not isinstance(number, bool) and number > 0
        if not isinstance(name, str) or not name or not is_number:
            raise _wrong(f"{key} maps names of dims to positive ints", repr(dict(value)))
    return dict(value)


def _wrong(message: str, found: str) -> SpyreError:
    return SpyreError("SPY975", message, found=found, hint='spyre_hint(slices={"A": 2})')


def scopes_of(node: Any) -> tuple[HintScope, ...]:
    """The hint blocks an FX node was traced in, the outermost first."""
    custom = node.meta.get("custom") or {}
    return tuple(
        sorted(
            HintScope(
                int(key.removeprefix(PREFIX)),
                tuple(value.get("slices", {}).items()),
                tuple(value.get("work_div", {}).items()),
            )
            for key, value in custom.items()
            if isinstance(key, str) and key.startswith(PREFIX)
        )
    )


def hints_key(graph_module: Any) -> tuple[Any, ...]:
    """What the hints of a graph contribute to the key of compile caches.

    These keys do not see ``meta["custom"]`` of nodes; they see attributes of the graph module. The
    numbers of scopes are replaced by the order in which they are first met, so
    the key is the same in every process.
    """
    order: dict[int, int] = {}
    found = []
    for place, node in enumerate(graph_module.graph.nodes):
        scopes = tuple(
            (order.setdefault(scope.number, len(order)), scope.slices, scope.work_div)
            for scope in scopes_of(node)
        )
        if scopes:
            found.append((place, scopes))
    return tuple(found)
