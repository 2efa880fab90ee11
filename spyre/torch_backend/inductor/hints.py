"""Dim names (`declare_tensor_dim`, `name_tensor_dims`) and hints (`spyre_hint`) of users.

Names are stored by tensor object, weakly. Fake tensors have none, so `names_of_inputs` reads them
from the real tensors that ``compile_fx`` is called with. A hint marks the operations of its block
by an entry in ``node.meta["custom"]``, which AOTAutograd and decompositions propagate. Every
entered block has a unique number, and inner blocks have larger ones. Safe to use from several
threads. Does not import Inductor.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch.fx.traceback import annotate
from torch.utils.weak import WeakTensorKeyDictionary

from spyre.errors import SpyreError

DimNames = tuple[str | None, ...]
"""A name per dim of a tensor; None for a dim without one."""

_lock = threading.Lock()
_declared_extents: dict[str, int] = {}
_names_of_tensors: Any = WeakTensorKeyDictionary()


def declare_tensor_dim(name: str, extent: int) -> None:
    """Declare that dims called ``name`` have ``extent`` elements.

    Declaring it anew replaces the extent for tensors named later. SpyreError SPY974 unless the
    name is a non-empty string and the extent a positive int.
    """
    if not isinstance(name, str) or not name:
        raise SpyreError("SPY974", "the name of a dim is a non-empty string", found=repr(name))
    if not isinstance(extent, int) or isinstance(extent, bool) or extent < 1:
        raise SpyreError(
            "SPY974", f"the extent of dim {name!r} is a positive int", found=repr(extent)
        )
    with _lock:
        _declared_extents[name] = extent


def declared_extent(name: str) -> int | None:
    """The extent ``name`` was declared with last, or None."""
    with _lock:
        return _declared_extents.get(name)


def name_tensor_dims(tensor: torch.Tensor, names: Sequence[str | None]) -> None:
    """Name the dims of ``tensor``, one name per dim, None for a dim that stays without one.

    Functions compiled with the tensor as an argument or parameter know the names; views, copies
    and results of eager operations do not have them. SpyreError SPY974 when the number of names is
    not that of dims, a name is not declared, or the extents differ.
    """
    given = tuple(names)
    if len(given) != tensor.dim():
        raise SpyreError(
            "SPY974",
            "a tensor has one name per dim",
            expected=f"{tensor.dim()} names for size {list(tensor.shape)}",
            found=str(list(given)),
        )
    for dim, name in enumerate(given):
        if name is not None:
            _check_extent(name, dim, tensor.shape[dim])
    with _lock:
        _names_of_tensors[tensor] = given


def _check_extent(name: str, dim: int, extent: int) -> None:
    declared = declared_extent(name)
    if declared is None:
        raise SpyreError(
            "SPY974",
            f"dim {name!r} is not declared",
            hint=f"declare_tensor_dim({name!r}, {extent})",
        )
    if declared != extent:
        raise SpyreError(
            "SPY974",
            f"dim {dim} of the tensor cannot be called {name!r}",
            expected=f"{declared} elements, as {name!r} was declared",
            found=f"{extent} elements",
        )


def names_of_inputs(example_inputs: Sequence[Any]) -> tuple[DimNames | None, ...]:
    """The dim names of each input of a compiled function, None for inputs without names.

    ``example_inputs``: arguments of ``compile_fx``; real tensors, as fake ones have no names.
    """
    with _lock:
        return tuple(
            _names_of_tensors.get(given) if isinstance(given, torch.Tensor) else None
            for given in example_inputs
        )


HINT_PREFIX = "spyre_hint:"
_scope_numbers = itertools.count()


class HintScope(msgspec.Struct, frozen=True, order=True):
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
    given = (slices, num_tiles_per_dim, work_div)
    if not torch.compiler.is_compiling():
        _hint_entry(*given)
        return contextlib.nullcontext()
    annotation: contextlib.AbstractContextManager[None] = annotate(_traced_hint_entry(*given))
    return annotation


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _traced_hint_entry(*arguments: Mapping[str, int] | None) -> dict[str, Any]:
    """The entry of ``meta["custom"]``; called while Dynamo traces, not in compiled code."""
    return {f"{HINT_PREFIX}{next(_scope_numbers)}": _hint_entry(*arguments)}


def _hint_entry(
    slices: Mapping[str, int] | None,
    num_tiles_per_dim: Mapping[str, int] | None,
    work_div: Mapping[str, int] | None,
) -> dict[str, dict[str, int]]:
    if slices is not None and num_tiles_per_dim is not None:
        raise _wrong_hint("slices and num_tiles_per_dim are the same; give one of them", "both")
    tiles = slices if slices is not None else num_tiles_per_dim
    if tiles is None and work_div is None:
        raise _wrong_hint("spyre_hint needs slices or work_div", "neither")
    given = {"slices": tiles, "work_div": work_div}
    return {key: _checked_counts(key, value) for key, value in given.items() if value is not None}


def _checked_counts(key: str, value: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(value, Mapping) or not value:
        raise _wrong_hint(f"{key} maps names of dims to numbers", repr(value))
    for name, number in value.items():
        is_number = isinstance(number, int) and not isinstance(number, bool) and number > 0
        if not isinstance(name, str) or not name or not is_number:
            raise _wrong_hint(f"{key} maps names of dims to positive ints", repr(dict(value)))
    return dict(value)


def _wrong_hint(message: str, found: str) -> SpyreError:
    return SpyreError("SPY975", message, found=found, hint='spyre_hint(slices={"A": 2})')


def scopes_of(node: Any) -> tuple[HintScope, ...]:
    """The hint blocks an FX node was traced in, the outermost first."""
    custom = node.meta.get("custom") or {}
    return tuple(
        sorted(
            HintScope(
                int(key.removeprefix(HINT_PREFIX)),
                tuple(value.get("slices", {}).items()),
                tuple(value.get("work_div", {}).items()),
            )
            for key, value in custom.items()
            if isinstance(key, str) and key.startswith(HINT_PREFIX)
        )
    )


def hints_key(graph_module: Any) -> tuple[Any, ...]:
    """The part of compile cache keys that depends on the hints of a graph.

    The keys cover attributes of the graph module, but not ``meta["custom"]`` of nodes. Numbers of
    scopes are replaced by the order of their first occurrence, so that the key is the same in every
    process.
    """
    order: dict[int, int] = {}
    key = []
    for place, node in enumerate(graph_module.graph.nodes):
        scopes = tuple(
            (order.setdefault(scope.number, len(order)), scope.slices, scope.work_div)
            for scope in scopes_of(node)
        )
        if scopes:
            key.append((place, scopes))
    return tuple(key)
