"""The CPU fallback: operations without a kernel on the card run on copies of their arguments.

The first fallback of each operation gives a warning; `fallbacks` counts the calls,
`fallback_seconds` sums their times, and SPYRE_FALLBACK=error makes them errors. Tensors of several
devices are refused: the CPU could compute with them, but PyTorch users rely on the error, because
the same code fails on any other device. Thread-safe.

Every storage is copied to the host once, so tensors that share memory share it there too. The card
is not changed before all results exist. A small view of a large storage is first copied on the
card, so that only its elements are transferred.

torch wraps a Python number as a tensor of rank 0, of which only the kind takes part in type
promotion, and unwraps it before it calls a Python kernel. Arithmetic operators wrap it again; other
CPU kernels need a tensor, one whose dtype gives the same promotion.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.utils._pytree import tree_iter

from spyre import config
from spyre.errors import UnsupportedError
from spyre.layout import contiguous_strides
from spyre.torch_backend.compat import is_dense, schema_of, storage_key, takes_numbers
from spyre.torch_backend.device import (
    PARTS,
    check_int64,
    cpu_generator,
    different_devices,
    drawing_from_card,
    is_on_card,
    is_random,
    name_of,
    warn_user,
)
from spyre.torch_backend.program import NotRecorded, current_recorder
from spyre.torch_backend.registration import refuse_layout
from spyre.torch_backend.tensors import (
    allocate,
    buffer_of,
    from_host,
    set_storage,
    start_host_storage,
    view_of,
    with_bits_of,
    write_storage,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexStream, Work

_lock = threading.Lock()
_counts: Counter[str] = Counter()
_seconds: dict[str, float] = {}
_warned: set[str] = set()


def fallbacks() -> dict[str, int]:
    """Return the number of CPU fallbacks of each operation, by its full name."""
    with _lock:
        return dict(_counts)


def fallback_seconds() -> dict[str, float]:
    """Return the host seconds that each operation spent in the CPU fallback, by its full name,
    including copies and waiting for earlier work of the card.
    """
    with _lock:
        return dict(_seconds)


def reset_fallbacks() -> None:
    """Reset counts and times to zero; warnings already given are not repeated."""
    with _lock:
        _counts.clear()
        _seconds.clear()


def cpu_fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``op`` on the CPU with copies. UnsupportedError SPY900 with SPYRE_FALLBACK=error. Random
    numbers are drawn on the CPU by design: an operation that only draws is no fallback.

    RuntimeError with torch's text for tensors on several devices; NotRecorded while the compiler
    records kernels.
    """
    if current_recorder() is not None:
        raise NotRecorded(str(op))
    signature = signature_of(op)
    draws = signature.is_random and signature.tensors <= signature.written
    with nullcontext() if draws else on_cpu(reported_name(op)):
        check_devices(op, args, kwargs)
        return FallbackCall(op).run(args, kwargs)


def decided_by_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise torch's error for arguments that ``op`` refuses. Where the CPU takes them after all, it
    is a `cpu_fallback`.
    """
    check_devices(op, args, kwargs)
    result = FallbackCall(op).run(args, kwargs)
    _announce(reported_name(op))
    return result


def reported_name(op: Any) -> str:
    """The name that reports give an operation; that of its ``out`` overload is the packet's, since
    calls without ``out=`` run it too.
    """
    return str(op).removesuffix(".out")


@contextmanager
def on_cpu(name: str) -> Iterator[None]:
    """Count and time an operation that the block runs on the CPU; warn of it, or refuse it."""
    _announce(name)
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        with _lock:
            _seconds[name] = _seconds.get(name, 0.0) + seconds


def _announce(name: str) -> None:
    """Count an operation that is about to run on the CPU; warn of it, or refuse it."""
    mode = config.FALLBACK.read().lower()
    if mode == "error":
        raise UnsupportedError(
            "SPY900",
            f"{name} has no kernel on the card",
            expected="an operation of docs/torch.md, or SPYRE_FALLBACK=warn",
            hint="move the tensors to the CPU explicitly, or allow the CPU fallback",
        )
    with _lock:
        _counts[name] += 1
        is_new = mode != "silent" and name not in _warned
        if is_new:
            _warned.add(name)
    if is_new:
        warn_user(
            f"{name} runs on the CPU: the spyre device has no kernel for it "
            "(SPYRE_FALLBACK=silent hides this, =error forbids it)"
        )


_INDEXED = ("_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
HOST_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("_ctc_loss", "_ctc_loss_backward"), ("input_lengths", "target_lengths")),
    **dict.fromkeys(("_fused_adam_", "_fused_adamw_"), ("state_steps",)),
    **dict.fromkeys((*_INDEXED, "index", "index_put", "index_put_"), ("indices",)),
    **dict.fromkeys(("copy", "copy_"), ("src",)),
    **dict.fromkeys(("lstm", "_pad_packed_sequence"), ("batch_sizes",)),
    "_pack_padded_sequence": ("lengths",),
    "_pin_memory": ("self",),
    "set_data": ("new_data",),
}
"""Arguments that may be CPU tensors of any size, by operator of aten."""


def check_devices(op: Any, args: Any, kwargs: Any) -> None:
    """Raise RuntimeError with torch's text if tensors are on two cards, or on a card and the CPU.

    CPU tensors without dims count as numbers, as in torch.
    """
    if len({tensor.device for tensor in tensors_in((args, kwargs))}) < 2:
        return
    schema = schema_of(op)
    allowed = HOST_ARGUMENTS.get(schema.name.removeprefix("aten::"), ())
    specs = {spec.name: spec for spec in schema.arguments}
    pairs = [*zip(schema.arguments, args, strict=False)]
    pairs += [(specs[name], value) for name, value in kwargs.items()]
    devices: dict[torch.device, None] = {}
    for spec, value in pairs:
        for tensor in tensors_in(value):
            is_written = spec.alias_info is not None and spec.alias_info.is_write
            is_number = tensor.device.type == "cpu" and tensor.dim() == 0 and not is_written
            if not is_number and not (tensor.device.type == "cpu" and spec.name in allowed):
                devices[tensor.device] = None
    if len(devices) > 1:
        first, second = [*devices][:2]
        raise different_devices(first, second, f" (in {schema.name})")


# --- one operation on the CPU --------------------------------------------------------------------


def number_tensor(value: complex, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return ``value`` as a CPU tensor of rank 0, in a dtype that promotes with ``others`` as a
    Python number does.

    Tensors of rank 0 have a lower priority than those with dims in torch's promotion: only others
    of rank 0 decide, booleans only if there are no other tensors. The value changes only for them.
    """
    chosen = [t for t in others if t.dtype is not torch.bool] or list(others)
    chosen = [t for t in chosen if t.dim() == 0]
    alone = torch.tensor(value, device="cpu")
    if not chosen:
        return alone
    dtype = functools.reduce(torch.promote_types, (torch.result_type(t, value) for t in chosen))
    return alone.to(dtype)


FLOAT_FUNCTIONS = ("copysign", "xlogy")
"""Operators without number overloads, whose results are floats also for integers."""

UNMARKED_WRITES: dict[str, tuple[str, ...]] = {
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "aten::native_batch_norm": ("running_mean", "running_var"),
}
"""Arguments that operators change although their schema does not mark them."""


class Signature(msgspec.Struct, frozen=True):
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


@functools.lru_cache(4096)
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


def wrap_numbers(op: Any, host_args: list[Any]) -> None:
    """Replace numbers in place of a tensor by a `number_tensor`."""
    signature, name = signature_of(op), schema_of(op).name.removeprefix("aten::")
    if takes_numbers(name):
        return
    for position, value in enumerate(host_args):
        is_number = isinstance(value, (int, float, complex))
        if is_number and signature.names[position] in signature.tensors:
            number = float(value) if name in FLOAT_FUNCTIONS else value
            host_args[position] = number_tensor(number, tensors_in(host_args))


LARGE_BYTES = 1 << 22
"""Small views of storages of at least this size are copied separately."""
SMALL_PART = 8
"""A view is small if its storage is at least this many times larger."""


class FallbackCall:
    """One operation on the CPU. Used by one thread."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.signature = signature_of(op)
        self.storages: dict[int, torch.UntypedStorage] = {}
        """Copies of storages on the host, by key of the storage on the card."""
        self.parents: dict[int, torch.Tensor] = {}
        """Tensors over storages, by key of the storage on the card."""
        self.parts: dict[tuple[Any, ...], torch.Tensor] = {}
        """Views that were copied separately, by storage key, sizes, strides and offset."""
        self.written: dict[int, tuple[torch.Tensor, torch.Tensor, bool]] = {}
        """By id of a CPU tensor: the tensor that the operation changes, the CPU tensor, and whether
        that has only the view's elements, not the whole storage.
        """
        self.host_tensors: dict[int, tuple[torch.Tensor, bool]] = {}
        """By id of a tensor on the card: its CPU tensor, and whether it was copied separately."""
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
        wrap_numbers(self.op, host_args)
        result = self._compute(host_args, host_kwargs)
        for tensor in tensors_in(result):
            if tensor.layout is not torch.strided:
                refuse_layout(tensor.layout)
            name_of(PARTS.get(tensor.dtype, tensor.dtype))
        results = self._up(result)
        self._write_back()
        return results

    def _compute(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result on the CPU.

        Raises earlier failures of the streams if the operation fails, possibly because of them, or
        if it returns a value that is not a tensor; else they are raised when results are read.
        """
        result = None
        try:
            with self._randomness(len(args), kwargs):
                result = self.op(*args, **kwargs)
        finally:
            if not isinstance(result, (torch.Tensor, list, tuple)):
                for stream, _ in self.copies:
                    stream.report()
        return result

    # --- down ------------------------------------------------------------------------------------

    def _down(self, value: Any, name: str) -> Any:
        if is_on_card(value):
            if id(value) not in self.host_tensors:
                self.host_tensors[id(value)] = self._down_tensor(value, name)
            host, is_part = self.host_tensors[id(value)]
            if name in self.signature.written:
                self.written[id(host)] = value, host, is_part
            return host
        if isinstance(value, (list, tuple)):
            return type(value)(self._down(v, name) for v in value)
        if isinstance(value, torch.device) and value.type == "spyre":
            self.device_index = -1 if value.index is None else value.index
            return torch.device("cpu")
        return value

    def _down_tensor(self, tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, bool]:
        self.device_index = tensor.device.index
        key = storage_key(tensor)
        is_part = key not in self.storages and self._goes_alone(tensor, key, name)
        if is_part:
            host = self._part(tensor, key, name)
        else:
            host = view_of(self._storage(tensor, key, name), tensor)
        return with_bits_of(tensor, host), is_part

    def _part(self, tensor: torch.Tensor, key: int, name: str) -> torch.Tensor:
        view = (key, *_extents(tensor))
        part = self.parts.get(view)
        if part is None and name in self.signature.outputs:
            part = torch.empty_like(tensor, device="cpu")
        elif part is None:
            with torch.no_grad():
                elements = tensor.clone()
            part = view_of(self._start(elements), elements)
        self.parts[view] = part
        return part.view_as(part)

    def _storage(self, tensor: torch.Tensor, key: int, name: str) -> torch.UntypedStorage:
        if key not in self.storages:
            self.parents[key] = tensor
            is_output = name in self.signature.outputs
            make = self._output_storage if is_output else self._start
            self.storages[key] = make(tensor)
        return self.storages[key]

    def _output_storage(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        """Return a host storage that the CPU may resize, with the elements that are not written."""
        size_bytes = tensor.untyped_storage().nbytes()
        # zeros: a result of fewer elements leaves some unwritten
        storage = torch.UntypedStorage(size_bytes).fill_(0)
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
        pairs = [(name, t) for name, value in self.arguments for t in tensors_in(value)]
        views = [(name, t) for name, t in pairs if is_on_card(t) and storage_key(t) == key]
        if self.signature.written.isdisjoint(name for name, _ in views):
            return True
        is_alone = all(_extents(view) == _extents(tensor) for _, view in views)
        return is_alone and not overlaps_itself(tensor)

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
        if id(value) in self.written:
            return self.written[id(value)][0]
        key = value.untyped_storage()._cdata
        for known, storage in self.storages.items():
            if storage._cdata == key:
                parent = self.parents[known]
                view = allocate((0,), (1,), value.dtype, parent.device.index)
                extents = (value.storage_offset(), value.size(), value.stride())
                return set_storage(view, parent.untyped_storage(), *extents)
        return to_card(value, self.device_index)

    def _write_back(self) -> None:
        if len(self.written) > 1:
            for _, host, _ in self.written.values():
                check_int64(host)
        done: set[int] = set()
        for tensor, host, is_part in self.written.values():
            if is_part and host.size() == tensor.size():
                with torch.no_grad():
                    tensor.copy_(to_card(host, self.device_index))
            elif self._keeps_storage(tensor, host):
                key = storage_key(tensor)
                if key not in done:
                    done.add(key)
                    write_storage(buffer_of(tensor), self.storages[key])

    def _keeps_storage(self, tensor: torch.Tensor, host: torch.Tensor) -> bool:
        """Give ``tensor`` the sizes and strides of its copy on the CPU; return False if it got new
        memory, which has the elements already.
        """
        if host.size() == tensor.size() and host.stride() == tensor.stride():
            return True
        storage, card_storage = host.untyped_storage(), tensor.untyped_storage()
        copy = self.storages.get(storage_key(tensor))  # None if only a part was copied
        is_copy = copy is not None and copy._cdata == storage._cdata
        if is_copy and storage.nbytes() == card_storage.nbytes():
            set_storage(tensor, card_storage, host.storage_offset(), host.size(), host.stride())
            return True
        new = to_card(host, self.device_index)
        set_storage(tensor, new.untyped_storage(), 0, new.size(), new.stride())
        return False


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return a tensor, or the tensors in nested lists and dicts; none for other values."""
    return [leaf for leaf in tree_iter(value) if isinstance(leaf, torch.Tensor)]


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


def to_card(host: torch.Tensor, device_index: int) -> torch.Tensor:
    """Return a new tensor on the card with the values, sizes and, if dense, strides of ``host``."""
    host = host.detach()
    size, stride = tuple(host.size()), tuple(host.stride())
    if stride != contiguous_strides(size) and not is_dense(host):
        stride = tuple(torch.empty_like(host, device="meta").stride())
    copy = allocate(size, stride, host.dtype, device_index)
    from_host(copy, host, non_blocking=True)
    return copy
