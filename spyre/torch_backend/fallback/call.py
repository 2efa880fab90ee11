"""One operation on the CPU: copy arguments to the host, and results and changed arguments back.

Every storage is copied to the host once, so tensors that share memory share it there too. The card
is not changed before all results exist. A small view of a large storage is first copied on the
card, so that only its elements are transferred.

torch wraps a Python number as a tensor of rank 0, of which only the kind takes part in type
promotion, and unwraps it before it calls a Python kernel. CPU kernels need a tensor again: one
whose dtype gives the same promotion.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from spyre.layout import contiguous_strides
from spyre.torch_backend.compat import is_dense, neg_view, schema_of, storage_key
from spyre.torch_backend.device import (
    check_int64,
    cpu_generator,
    drawing_from_card,
    is_on_card,
    is_random,
    name_of,
)
from spyre.torch_backend.registration import refuse_layout
from spyre.torch_backend.tensors import (
    allocate,
    buffer_of,
    from_host,
    set_storage,
    start_host_storage,
    view_of,
    write_storage,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexStream, Work

PythonNumber = bool | int | float | complex
NUMBERS = (bool, int, float, complex)


def number_tensor(value: PythonNumber, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return ``value`` as a CPU tensor of rank 0, in a dtype that promotes with ``others`` as a
    Python number does.

    Tensors of rank 0 have a lower priority than those with dims in torch's promotion, so they
    decide if there are any; booleans only if there are no other tensors.
    """
    chosen = [t for t in others if t.dtype is not torch.bool] or list(others)
    chosen = [t for t in chosen if t.dim() == 0] or chosen
    alone = torch.tensor(value, device="cpu")
    if not chosen:
        return alone
    dtype = functools.reduce(torch.promote_types, (torch.result_type(t, value) for t in chosen))
    return alone.to(dtype)


UNMARKED_WRITES: dict[str, tuple[str, ...]] = {
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "aten::native_batch_norm": ("running_mean", "running_var"),
}
"""Arguments that operators change although their schema does not mark them."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Arguments of an operator, by name.

    ``names``: all, in order. ``tensors``: those that take one tensor. ``written``: those that are
    changed. ``outputs``: the written ones that receive a result and may be resized. ``viewed``:
    those that the result may be a view of. ``generator``: position of the argument that takes a
    generator, or None. ``is_random``: the operator draws random numbers.
    """

    names: tuple[str, ...]
    tensors: frozenset[str]
    written: frozenset[str]
    outputs: frozenset[str]
    viewed: frozenset[str]
    generator: int | None
    is_random: bool


@lru_cache(4096)
def signature_of(op: Any) -> Signature:
    schema = schema_of(op)
    arguments = schema.arguments
    names = tuple(a.name for a in arguments)
    marked = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write}
    viewed = {a.name for a in arguments if a.alias_info is not None and not a.alias_info.is_write}
    return Signature(
        names=names,
        tensors=frozenset(a.name for a in arguments if str(a.type) in _ONE_TENSOR),
        written=frozenset(marked.union(UNMARKED_WRITES.get(schema.name, ()))),
        outputs=frozenset(a.name for a in arguments if a.kwarg_only and a.name in marked),
        viewed=frozenset(viewed),
        generator=names.index("generator") if "generator" in names else None,
        is_random=is_random(op),
    )


_ONE_TENSOR = ("Tensor", "Optional[Tensor]")

LARGE_BYTES = 1 << 22
"""Small views of storages of at least this size are copied separately."""
SMALL_PART = 8
"""A view is small if its storage is at least this many times larger."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A tensor that the operation changes, and the CPU tensor that replaces it.

    ``is_part``: the CPU tensor has only the view's elements, not the whole storage.
    """

    tensor: torch.Tensor
    host: torch.Tensor
    is_part: bool


class FallbackCall:
    """One operation on the CPU. Used by one thread."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.signature = signature_of(op)
        self.storages: dict[int, torch.UntypedStorage] = {}
        """By key of a storage on the card: its copy on the host."""
        self.parents: dict[int, torch.Tensor] = {}
        """By key of a storage on the card: a tensor over it."""
        self.parts: dict[tuple[Any, ...], torch.Tensor] = {}
        """By storage key, sizes, strides and offset: views that were copied separately."""
        self.written: dict[int, _Written] = {}
        """By id of the CPU tensor."""
        self.arguments: list[tuple[str, Any]] = []
        self.copies: list[tuple[FlexStream, Work]] = []
        """Copies to the host that are not complete."""
        self.device_index = -1

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the operation's result on the card. UnsupportedDtype or UnsupportedError for
        results that the card cannot hold.
        """
        names = self.signature.names
        self.arguments = [*zip(names, args, strict=False), *kwargs.items()]
        host_args = [self._down(value, name) for name, value in zip(names, args, strict=False)]
        host_kwargs = {name: self._down(value, name) for name, value in kwargs.items()}
        # the last one first: this thread then runs all remaining copies without waking others
        for stream, copy in reversed(self.copies):
            stream.wait_for(copy)
        self._wrap_numbers(host_args)
        result = self._compute(host_args, host_kwargs)
        _check_results(result)
        results = self._up(result)
        self._write_back()
        return results

    def _compute(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result on the CPU.

        Raises earlier failures of the streams if the operation fails, possibly because of them, or
        if it returns a value that is not a tensor; else they are raised when results are read.
        """
        try:
            with self._randomness(len(args), kwargs):
                result = self.op(*args, **kwargs)
        except Exception:
            self._report_failures()
            raise
        if not isinstance(result, (torch.Tensor, list, tuple)):
            self._report_failures()
        return result

    def _report_failures(self) -> None:
        for stream, _ in self.copies:
            stream.report()

    # --- down ------------------------------------------------------------------------------------

    def _down(self, value: Any, name: str) -> Any:
        if is_on_card(value):
            return self._down_tensor(value, name)
        if isinstance(value, (list, tuple)):
            return type(value)(self._down(v, name) for v in value)
        if isinstance(value, torch.device) and value.type == "spyre":
            self.device_index = -1 if value.index is None else value.index
            return torch.device("cpu")
        return value

    def _down_tensor(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        self.device_index = tensor.device.index
        is_written = name in self.signature.written
        key = storage_key(tensor)
        is_part = key not in self.storages and self._goes_alone(tensor, key, name)
        if is_part:
            host = self._part(tensor, key, name)
        else:
            host = view_of(self._storage(tensor, key, name), tensor)
        if tensor.is_conj():
            host = host.conj()
        if tensor.is_neg():
            host = neg_view(host)
        if is_written:
            self.written[id(host)] = _Written(tensor, host, is_part)
        return host

    def _part(self, tensor: torch.Tensor, key: int, name: str) -> torch.Tensor:
        key_of_view = (key, *_extents(tensor))
        part = self.parts.get(key_of_view)
        if part is None:
            part = self.parts[key_of_view] = self._part_copy(tensor, name)
        return part.view_as(part)

    def _part_copy(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        if name in self.signature.outputs:
            return torch.empty_like(tensor, device="cpu")
        with torch.no_grad():
            elements = tensor.clone()
        return view_of(self._start(elements), elements)

    def _storage(self, tensor: torch.Tensor, key: int, name: str) -> torch.UntypedStorage:
        copy = self.storages.get(key)
        if copy is None:
            self.parents[key] = tensor
            if name in self.signature.outputs:
                copy = self._output_storage(tensor)
            else:
                copy = self._start(tensor)
            self.storages[key] = copy
        return copy

    def _output_storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        """Return a host storage that the CPU may resize, with the elements that are not written."""
        size_bytes = tensor.untyped_storage().nbytes()
        storage = torch.UntypedStorage(size_bytes)
        if size_bytes and tensor.numel() * tensor.element_size() != size_bytes:
            content = self._start(tensor)
            stream, copy = self.copies.pop()
            stream.wait_for(copy)
            storage.copy_(content)
        return storage

    def _start(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        buffer = buffer_of(tensor)
        storage, copy = start_host_storage(buffer)
        if copy is not None:
            self.copies.append((buffer.card.streams.current, copy))
        return storage

    def _goes_alone(self, tensor: torch.Tensor, key: int, name: str) -> bool:
        """Return True for a small view of a large storage that no other argument accesses."""
        size_bytes = tensor.untyped_storage().nbytes()
        if size_bytes < LARGE_BYTES or name in self.signature.viewed:
            return False
        if tensor.numel() * tensor.element_size() * SMALL_PART > size_bytes:
            return False
        if not self._writes_to(key):
            return True
        views = [view for _, view in self._views(key)]
        is_alone = all(_extents(view) == _extents(tensor) for view in views)
        return is_alone and not overlaps_itself(tensor)

    def _writes_to(self, key: int) -> bool:
        written = self.signature.written
        return bool(written) and any(name in written for name, _ in self._views(key))

    def _views(self, key: int) -> list[tuple[str, torch.Tensor]]:
        """Return the arguments over one storage of the card, with their names."""
        pairs = [(name, t) for name, value in self.arguments for t in tensors_in(value)]
        return [(name, t) for name, t in pairs if is_on_card(t) and storage_key(t) == key]

    def _wrap_numbers(self, host_args: list[Any]) -> None:
        names, tensors = self.signature.names, self.signature.tensors
        for position, value in enumerate(host_args):
            if isinstance(value, NUMBERS) and names[position] in tensors:
                host_args[position] = number_tensor(value, tensors_in(host_args))

    def _randomness(self, count: int, kwargs: dict[str, Any]) -> AbstractContextManager[None]:
        """Use the card's random numbers, for random operations without a generator argument."""
        signature = self.signature
        if not signature.is_random:
            return nullcontext()
        position = signature.generator
        if position is None:
            return drawing_from_card(self.device_index)
        if count <= position and kwargs.get("generator") is None:
            kwargs["generator"] = cpu_generator(self.device_index)
        return nullcontext()

    # --- up --------------------------------------------------------------------------------------

    def _up(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._up_tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._up(v) for v in value)
        return value

    def _up_tensor(self, value: torch.Tensor) -> torch.Tensor:
        written = self.written.get(id(value))
        if written is not None:
            return written.tensor
        key = value.untyped_storage()._cdata
        for known, storage in self.storages.items():
            if storage._cdata == key:
                return _view(self.parents[known], value)
        return to_card(value, self.device_index)

    def _write_back(self) -> None:
        if len(self.written) > 1:
            for written in self.written.values():
                check_int64(written.host)
        done: set[int] = set()
        for written in self.written.values():
            if written.is_part and written.host.size() == written.tensor.size():
                with torch.no_grad():
                    written.tensor.copy_(to_card(written.host, self.device_index))
            elif self._keeps_storage(written.tensor, written.host):
                key = storage_key(written.tensor)
                if key not in done:
                    done.add(key)
                    write_storage(buffer_of(written.tensor), self.storages[key])

    def _keeps_storage(self, tensor: torch.Tensor, host: torch.Tensor) -> bool:
        """Give ``tensor`` the sizes and strides of its copy on the CPU; return False if it got new
        memory, which has the elements already.
        """
        if host.size() == tensor.size() and host.stride() == tensor.stride():
            return True
        storage, card_storage = host.untyped_storage(), tensor.untyped_storage()
        if storage.nbytes() == card_storage.nbytes() and storage._cdata == self._host_key(tensor):
            set_storage(tensor, card_storage, host.storage_offset(), host.size(), host.stride())
            return True
        new = to_card(host, self.device_index)
        set_storage(tensor, new.untyped_storage(), 0, new.size(), new.stride())
        return False

    def _host_key(self, tensor: torch.Tensor) -> int | None:
        """Return the identity of the copy of a tensor's storage; None if only a part was copied."""
        copy = self.storages.get(storage_key(tensor))
        return None if copy is None else copy._cdata


def tensors_in(value: Any) -> Sequence[torch.Tensor]:
    """Return a tensor, or the tensors in nested lists; none for other values."""
    if isinstance(value, torch.Tensor):
        return (value,)
    if not isinstance(value, (list, tuple)):
        return ()
    return [tensor for one in value for tensor in tensors_in(one)]


def _extents(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return sizes, strides and storage offset of a view."""
    return tuple(tensor.size()), tensor.stride(), tensor.storage_offset()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return True if several indices may refer to one element."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach = stride * (size - 1) + reach
    return False


def _check_results(result: Any) -> None:
    """Raise UnsupportedDtype or UnsupportedError for results that the card cannot hold."""
    for tensor in tensors_in(result):
        if tensor.layout is not torch.strided:
            refuse_layout(tensor.layout)
        name_of(tensor.dtype)


def _view(parent: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a view of the argument ``parent`` with the sizes and strides of ``like``."""
    view = allocate((0,), (1,), like.dtype, parent.device.index)
    extents = (like.storage_offset(), like.size(), like.stride())
    return set_storage(view, parent.untyped_storage(), *extents)


def to_card(host: torch.Tensor, device_index: int) -> torch.Tensor:
    """Return a new tensor on the card with the values, sizes and, if dense, strides of ``host``."""
    host = host.detach()
    size, stride = tuple(host.size()), tuple(host.stride())
    if stride != contiguous_strides(size) and not is_dense(host):
        stride = tuple(torch.empty_like(host, device="meta").stride())
    copy = allocate(size, stride, host.dtype, device_index)
    from_host(copy, host, non_blocking=True)
    return copy
