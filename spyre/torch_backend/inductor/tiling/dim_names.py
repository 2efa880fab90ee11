"""Names of tensor dims, given by users: `declare_tensor_dim`, `name_tensor_dims`.

Names belong to tensor objects, weakly: tracers' tensors carry nothing, so `names_of_inputs` reads
them from the real tensors that ``compile_fx`` is called with. Safe to use from several threads.
Loads nothing of Inductor.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from spyre.errors import SpyreError

DimNames = tuple[str | None, ...]
"""A name per dim of a tensor; None for a dim without one."""

_lock = threading.Lock()
_extents: dict[str, int] = {}
_names: Any = WeakTensorKeyDictionary()


def declare_tensor_dim(name: str, extent: int) -> None:
    """A dim called ``name`` has ``extent`` elements from now on.

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
        _extents[name] = extent


def declared_extent(name: str) -> int | None:
    """The extent ``name`` was declared with last, or None."""
    with _lock:
        return _extents.get(name)


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
        _names[tensor] = given


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
    """Per input of a compiled function: the names of its dims, None where it has none.

    ``example_inputs``: what ``compile_fx`` is called with; real tensors, as fake ones have no
    names.
    """
    with _lock:
        return tuple(
            _names.get(given) if isinstance(given, torch.Tensor) else None
            for given in example_inputs
        )
