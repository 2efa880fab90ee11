"""Writes to overlapping memory: refused where torch refuses them on the CPU, with its message.

The rules are inside torch's CPU kernels and differ by operation: an elementwise one refuses a
result that shares part of an operand's memory, a fill may write to an expanded tensor, a matrix
product checks nothing. So the operation is tried on the CPU once per geometry, over zeros that
share memory in the same way, if a written tensor may overlap itself or another operand. If the CPU
accepts elements that coincide, its result depends on the order of its writes, so it runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from spyre.lru_cache import LruCache
from spyre.torch_backend.compat import schema_of, storage_key
from spyre.torch_backend.fallback import overlaps_itself, tensors_in
from spyre.torch_backend.program import current_recorder

REFUSAL = "single memory location"
"""Part of torch's message for every write it refuses for its overlap."""
RESIZABLE_BYTES = 1 << 20
"""Up to this size operations may resize the tensors that `stand_ins` replaces."""
Verdict = tuple[str, bool]
"""Torch's message, empty where it refuses nothing, and whether elements coincide."""
MAX_VERDICTS = 4096
_verdicts: LruCache[Any, Verdict] = LruCache(MAX_VERDICTS)
"""Verdicts by function and geometry of its arguments."""


def overlap_check(op: Any) -> Callable[[Sequence[Any], Mapping[str, Any]], bool]:
    """The check of torch's CPU kernels of an operator for overlapping writes. Any thread.

    It returns True if elements of a written tensor coincide with each other or those of an operand,
    and raises RuntimeError where the CPU refuses that. A tensor changed in place is no other
    operand. While the compiler records it returns False, since traced tensors have no memory.
    """
    arguments = enumerate(schema_of(op).arguments)
    written_arguments = [(position, a.name) for position, a in arguments if a.is_write]
    base = schema_of(op).name.removeprefix("aten::").removesuffix("_")
    works_in_place = hasattr(torch.ops.aten, f"{base}_")

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        for position, name in written_arguments:
            written = args[position] if position < len(args) else kwargs.get(name)
            if (
                isinstance(written, torch.Tensor)
                and not current_recorder()  # first: strides of a traced tensor may be symbols
                and _may_overlap(written, args, kwargs, works_in_place)
            ):
                return _refuse_overlap(op, written, args, kwargs)
        return False

    return check


def _may_overlap(
    written: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], works_in_place: bool
) -> bool:
    # Every operation with a result comes here, so checks that call functions are last.
    if not written.is_contiguous() and overlaps_itself(written):
        return True
    key = None
    if len(kwargs) > 1:
        args = (*args, *(value for value in kwargs.values() if value is not written))
    for value in args:
        if value is written and works_in_place:
            continue
        if isinstance(value, torch.Tensor):
            key = storage_key(written) if key is None else key
            if storage_key(value) == key and _ranges_meet(value, written):
                return True
        is_list = isinstance(value, (list, tuple))
        if is_list and _may_overlap(written, value, {}, works_in_place):
            return True
    return False


def _refuse_overlap(
    function: Callable[..., Any],
    written: torch.Tensor,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> bool:
    """The answer of `overlap_check` for tensors that may overlap, cached by their geometry."""
    geometry: Any = (function, _geometry((*args, *sorted(kwargs.items())), {}))
    try:
        verdict = _verdicts.get(geometry)
    except TypeError:  # an argument cannot be hashed
        geometry, verdict = None, None
    if verdict is None:
        message, key = _message_of(function, *stand_ins((args, kwargs))), storage_key(written)
        tensors = [t for t in tensors_in((args, kwargs)) if storage_key(t) == key]
        coincides = any(_coincide(written, t) for t in tensors if t is not written)
        verdict = message, bool(message) or coincides or overlaps_itself(written)
        if geometry is not None:
            _verdicts.put(geometry, verdict)
    message, coincides = verdict
    if message:
        raise RuntimeError(message)
    return coincides


def _message_of(function: Callable[..., Any], host_args: Any, host_kwargs: Any) -> str:
    """Torch's message if it refuses CPU tensors for their overlap, else the empty string."""
    try:
        with torch.no_grad():
            function(*host_args, **host_kwargs)
    except Exception as error:  # the computation raises the others
        return str(error) if REFUSAL in str(error) else ""
    return ""


def refuse_traced_overlap(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """RuntimeError, as on the CPU, for a call that changes tensors of a tracer."""
    host_args, host_kwargs = stand_ins((args, kwargs))
    tensors = tensors_in((host_args, host_kwargs))
    shares = any(
        _ranges_meet(a, b)
        for a, b in combinations(tensors, 2)
        if a is not b and storage_key(a) == storage_key(b)
    )
    if shares or any(map(overlaps_itself, tensors)):
        message = _message_of(function, host_args, host_kwargs)
        if message:
            raise RuntimeError(message)


def stand_ins(values: Any) -> Any:
    """``values`` with their tensors, also in lists and dicts, replaced by CPU tensors of zeros that
    share memory in the same way. Symbolic sizes of a tracer's tensors are replaced by their hints.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    tensors: dict[int, torch.Tensor] = {}

    def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
        key = storage_key(tensor)
        if key not in storages:
            (size_bytes,) = _numbers((tensor.untyped_storage().nbytes(),))
            # of numpy: memory of zeros that is not touched costs nothing, but cannot be resized
            zeros = torch.from_numpy(np.zeros(size_bytes, np.uint8))
            is_small = size_bytes <= RESIZABLE_BYTES
            storages[key] = (zeros.clone() if is_small else zeros).untyped_storage()
        return storages[key]

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in tensors:
            size, stride, (offset,) = map(
                _numbers, (tensor.size(), tensor.stride(), (tensor.storage_offset(),))
            )
            empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
            tensors[id(tensor)] = empty.set_(storage_of(tensor), offset, size, stride)
        return tensors[id(tensor)]

    return tree_map_only(torch.Tensor, stand_in, values)


def _numbers(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes as numbers; symbols by their hints."""
    return tuple(n if isinstance(n, int) else n.node.hint for n in sizes)


def _geometry(value: Any, storages: dict[int, int]) -> Any:
    """The part of ``value`` that overlaps depend on. ``storages``: their numbers, by key."""
    if isinstance(value, (list, tuple)):
        return tuple(_geometry(item, storages) for item in value)
    if not isinstance(value, torch.Tensor):
        return value
    number = storages.setdefault(storage_key(value), len(storages))
    return number, value.dtype, tuple(value.size()), value.stride(), value.storage_offset()


def _ranges_meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if the bytes from the first to the last element of both, in one storage, meet."""
    if not a.numel() or not b.numel():
        return False
    (a_first, a_end), (b_first, b_end) = _range_bytes(a), _range_bytes(b)
    return a_first < b_end and b_first < a_end


def _range_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.storage_offset()
    return first * tensor.itemsize, (first + reach + 1) * tensor.itemsize


def _coincide(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if tensors over one storage have an element in common; of different sizes: may have."""
    if not _ranges_meet(a, b):
        return False
    if a.itemsize != b.itemsize:
        return True
    marks = torch.zeros(a.untyped_storage().nbytes() // a.itemsize, dtype=torch.bool, device="cpu")
    marks.as_strided(a.size(), a.stride(), a.storage_offset()).fill_(True)
    return bool(marks.as_strided(b.size(), b.stride(), b.storage_offset()).any())
