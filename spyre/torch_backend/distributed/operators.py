"""The operators of ``torch.ops.c10d`` on cards, as jobs of a `CardGroup`.

All of torch (functional collectives, the reducer of DDP, DTensor, FSDP) calls these. A tensor is
sent as its sticks if all ranks can derive this from the operation and the sizes, else as codes in C
order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from spyre.errors import SpyreError
from spyre.hw.device import Combiner
from spyre.hw.numerics import Numerics
from spyre.runtime.comms import CollectiveError, CollectiveRecord, padded, text_of
from spyre.torch_backend.compat import schema_of
from spyre.torch_backend.device import name_of
from spyre.torch_backend.distributed import compat
from spyre.torch_backend.distributed.group import (
    CardGroup,
    CollectiveFailure,
    Job,
    group_of,
    raise_failure_of,
)
from spyre.torch_backend.distributed.images import (
    Bytes,
    code_bytes,
    codes,
    note_written,
    plain,
    put_codes,
    slices,
    sticks,
    without_padding,
)
from spyre.torch_backend.eager.factories import copy_from as copy_from
from spyre.torch_backend.tensors import buffer_of

Tensors = Sequence[torch.Tensor]
Ints = Sequence[int]


@cache
def register_operators() -> None:
    """Register the kernels of the operators for cards, once per process."""
    compat.keep_imports_from_dynamo()
    compat.implement_c10d(KERNELS, raise_failure_of)


def unsupported(feature: str, hint: str) -> CollectiveFailure:
    """Return the error for a feature that spyreccl does not have, SPY958."""
    return CollectiveFailure(
        str(CollectiveError("SPY958", f"spyreccl has no {feature}", hint=hint))
    )


def _operator(reduce_op: Any, tensors: Tensors) -> str:
    """Return the name of a reduction. CollectiveFailure SPY953 if a dtype does not have it."""
    name = compat.reduce_op_name(reduce_op)
    if name == "premul_sum":
        raise unsupported("premultiplied sum", "multiply the tensor before the reduction")
    for tensor in tensors:
        _check_reduction(name, tensor.dtype)
    return name


@cache
def _check_reduction(operator: str, dtype: torch.dtype) -> None:
    is_average = operator == "avg" and dtype is not torch.bool
    try:
        Combiner("sum" if is_average else operator, name_of(dtype), Numerics())
    except SpyreError as error:
        raise CollectiveFailure(str(error)) from None


def _detail(tensor: torch.Tensor) -> str:
    return f"{name_of(tensor.dtype)} {list(tensor.size())}"


def _details(tensors: Tensors) -> str:
    """Return the dtype and sizes of tensors; one size if all are equal."""
    sizes = [list(tensor.size()) for tensor in tensors]
    uniform = sizes.count(sizes[0]) == len(sizes)
    return f"{name_of(tensors[0].dtype)} {sizes[0] if uniform else sizes}"


def _combiner(operator: str, tensor: torch.Tensor) -> Combiner:
    return _combiner_of(operator, name_of(tensor.dtype), buffer_of(tensor).card.device.numerics)


@cache
def _combiner_of(operator: str, dtype: str, numerics: Numerics) -> Combiner:
    return Combiner("sum" if operator == "avg" else operator, dtype, numerics)


def _addends(operator: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain form of ``tensor`` to reduce; padding must not overflow where int64 may."""
    target = plain(tensor)
    checks = tensor.dtype is torch.int64 and operator in ("sum", "product", "avg")
    return without_padding(target) if checks else target


def _finish(operator: str, group: CardGroup, tensor: torch.Tensor) -> None:
    """Divide an average, with one more operation of the card and one more rounding; waits."""
    if operator == "avg" and tensor.is_floating_point():
        tensor.div_(group.size)
    elif operator == "avg":
        tensor.div_(group.size, rounding_mode="floor")
    _synchronize(tensor)


def _synchronize(tensor: torch.Tensor) -> None:
    buffer_of(tensor).card.streams.current.synchronize()


def _copy_back(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Mark the sticks of ``target`` as written, and copy it to ``tensor`` if it is a copy of it."""
    note_written(target)
    if target is not tensor:
        copy_from(target, tensor)
        _synchronize(tensor)


# --- reductions -------------------------------------------------------------------------------


def _reduce(group: CardGroup, tensors: Tensors, operator: str, root: int | None) -> None:
    """``root``: the rank that gets the results; None for all ranks."""
    for tensor in tensors:
        combiner, target = _combiner(operator, tensor), _addends(operator, tensor)
        run, detail = sticks(target)[0], f"{operator} {_detail(tensor)}"
        if root is None:
            group.communicator.all_reduce(run, combiner, detail)
        else:
            group.communicator.reduce(run, root, combiner, detail)
        if root in (None, group.rank):
            _copy_back(target, tensor)
            _finish(operator, group, tensor)


def _reduce_scatter(
    group: CardGroup, out: torch.Tensor, whole: torch.Tensor, operator: str
) -> None:
    """``whole``: the parts of all ranks in one tensor."""
    source = _addends(operator, whole)
    parts = slices(source, tuple(out.size()), group.size) if out.numel() else None
    if parts is None:
        flat = source.reshape(group.size, *out.size())
        _reduce_parts(group, out, [flat[k] for k in range(group.size)], operator)
        return
    target = plain(out)
    combiner, detail = _combiner(operator, out), f"{operator} {_detail(out)}"
    rows = sticks(target).reshape(parts[0].shape)
    group.communicator.reduce_scatter(rows, parts, combiner, detail)
    _copy_back(target, out)
    _finish(operator, group, out)


def _reduce_parts(group: CardGroup, out: torch.Tensor, parts: Tensors, operator: str) -> None:
    """Reduce this rank's part over all ranks into ``out``; parts may differ in size."""
    like = parts[group.rank]
    combiner = _combiner(operator, like)
    shaped = out if out.size() == like.size() else out.view(like.size())
    target = plain(shaped)
    rows = [sticks(_addends(operator, part)) for part in parts]
    detail = f"{operator} {_details(parts)}"
    group.communicator.reduce_scatter(sticks(target), rows, combiner, detail)
    _copy_back(target, shaped)
    _finish(operator, group, out)


# --- copies -----------------------------------------------------------------------------------


def _broadcast(group: CardGroup, tensors: Tensors, root: int) -> None:
    for tensor in tensors:
        target = plain(tensor)
        group.communicator.broadcast(sticks(target), root, _detail(tensor))
        if group.rank != root:
            _copy_back(target, tensor)


@contextmanager
def _receiving(outs: Tensors) -> Iterator[list[Bytes]]:
    """Give the sticks of plain forms of ``outs`` to fill."""
    targets = [plain(out) for out in outs]
    yield [sticks(target) for target in targets]
    for target, out in zip(targets, outs, strict=True):
        _copy_back(target, out)


def _all_gather(group: CardGroup, outs: Tensors, own: torch.Tensor) -> None:
    """``outs``: a tensor per rank; they may differ in size."""
    source = plain(own)
    with _receiving(outs) as rows:
        group.communicator.all_gather(rows, sticks(source), _details(outs))


def _all_gather_base(group: CardGroup, whole: torch.Tensor, own: torch.Tensor) -> None:
    """``whole``: the parts of all ranks in one tensor."""
    target, detail = plain(whole), _detail(own)
    parts = slices(target, tuple(own.size()), group.size) if own.numel() else None
    if parts is not None:
        source = sticks(plain(own)).reshape(parts[0].shape)
        group.communicator.all_gather(parts, source, detail)
        _copy_back(target, whole)
        return
    content = np.empty((group.size, code_bytes(own)), np.uint8)
    rows = [content[k : k + 1] for k in range(group.size)]
    group.communicator.all_gather(rows, codes(own), f"{detail} in C order")
    put_codes(whole, content)


def _gather(group: CardGroup, outs: Tensors, own: torch.Tensor, root: int) -> None:
    source = plain(own)
    with _receiving(outs) as rows:
        group.communicator.gather(rows, sticks(source), root, _detail(own))


def _scatter(group: CardGroup, out: torch.Tensor, parts: Tensors, root: int) -> None:
    rows = [sticks(plain(part)) for part in parts]
    with _receiving([out]) as (target,):
        group.communicator.scatter(target, rows, root, _detail(out))


def _all_to_all(group: CardGroup, outs: Tensors, parts: Tensors) -> None:
    detail = name_of(outs[0].dtype)
    sent, wanted = ([str(list(part.size())) for part in some] for some in (parts, outs))
    group.communicator.agree(sent, wanted, detail)
    rows = [sticks(plain(part)) for part in parts]
    with _receiving(outs) as received:
        group.communicator.all_to_all(received, rows, detail)


def _all_to_all_base(
    group: CardGroup, out: torch.Tensor, whole: torch.Tensor, out_rows: Ints, whole_rows: Ints
) -> None:
    """Exchange rows along the first dim: ``out_rows`` from and ``whole_rows`` to each rank; empty
    for equal numbers.
    """
    sent_rows, received_rows = _rows(whole, whole_rows, group), _rows(out, out_rows, group)
    detail = f"{name_of(out.dtype)} rows of {list(out.size()[1:])}"
    offered, wanted = ([f"{k} rows" for k in rows] for rows in (sent_rows, received_rows))
    group.communicator.agree(offered, wanted, detail)
    content = codes(whole)
    result = np.empty((1, code_bytes(out)), np.uint8)
    received, sent = _split(result, received_rows), _split(content, sent_rows)
    group.communicator.all_to_all(received, sent, detail)
    put_codes(out, result)


def _rows(tensor: torch.Tensor, rows: Ints, group: CardGroup) -> list[int]:
    """Return the number of rows per rank along the first dim: ``rows``, or equal ones."""
    return list(rows) or [tensor.size(0) // group.size] * group.size


def _split(content: Bytes, rows: Ints) -> list[Bytes]:
    edges = np.cumsum([0, *rows]) * (content.shape[1] // max(1, sum(rows)))
    return [content[:, start:end] for start, end in pairwise(edges)]


# --- point to point: messages between hosts' memories -----------------------------------------


def _send(group: CardGroup, tensor: torch.Tensor, peer: int, tag: int) -> None:
    begin_ns = time.perf_counter_ns()
    for message in (_header(tensor), torch.from_numpy(codes(tensor)[0])):
        if message.numel():
            _finish_message(group, group.gloo.send([message], peer, tag), peer)
    group.note(_message_record("send", f"send to {peer}", group, tensor, peer, begin_ns))


def _receive(group: CardGroup, tensor: torch.Tensor, peer: int, tag: int) -> None:
    begin_ns = time.perf_counter_ns()
    expected, header = text_of(_header(tensor).numpy()), _header(tensor)
    _finish_message(group, group.gloo.recv([header], peer, tag), peer)
    found = text_of(header.numpy())
    content = torch.empty(int(found.partition(" ")[0]), dtype=torch.uint8, device="cpu")
    if content.numel():
        _finish_message(group, group.gloo.recv([content], peer, tag), peer)
    if found != expected:
        raise CollectiveError(
            "SPY952",
            "two ranks do not exchange the same tensor",
            expected=f"{expected} (rank {group.rank})",
            found=f"{found} (rank {peer})",
        )
    put_codes(tensor, content.numpy().reshape(1, -1))
    group.note(_message_record("recv", f"recv from {peer}", group, tensor, peer, begin_ns))


def _finish_message(group: CardGroup, work: Any, peer: int) -> None:
    try:
        work.wait(compat.milliseconds(group.deadline.seconds_left))
    except RuntimeError as error:
        ended = f"a message from or to rank {peer}: the connection has ended"
        late = f"a message from or to rank {peer}: not done within {group.deadline.timeout:g} s"
        is_late, found = group.deadline.seconds_left == 0, str(error).splitlines()[0]
        raise CollectiveError(
            *("SPY955", late) if is_late else ("SPY954", ended), found=found
        ) from error


def _message_record(
    operation: str, name: str, group: CardGroup, tensor: torch.Tensor, peer: int, begin_ns: int
) -> CollectiveRecord:
    moved = [0] * group.size
    moved[peer] = size_bytes = code_bytes(tensor)
    none = [0] * group.size
    sent, received = (moved, none) if operation == "send" else (none, moved)
    end_ns, detail = time.perf_counter_ns(), _detail(tensor)
    return CollectiveRecord(
        operation, name, detail, 0, group.rank, size_bytes, begin_ns, end_ns,
        tuple(sent), tuple(received), 0,
    )  # fmt: skip


_MESSAGE_HEADER_BYTES = 64


def _header(tensor: torch.Tensor) -> torch.Tensor:
    text = f"{code_bytes(tensor)} bytes, {name_of(tensor.dtype)} {tensor.numel()}"
    return torch.from_numpy(padded(text, _MESSAGE_HEADER_BYTES).copy())


# --- checks -----------------------------------------------------------------------------------
# The errors are those of torch's backends. They come before anything is sent: the group lives on.


def _expect(holds: bool, error: type[Exception], text: str) -> None:
    if not holds:
        raise error(f"spyreccl: {text}")


def _check_list(group: CardGroup, tensors: Tensors, like: torch.Tensor) -> None:
    found = f"expected a tensor per rank, {group.size}, found {len(tensors)}"
    _expect(len(tensors) == group.size, ValueError, found)
    for tensor in tensors:
        _check_dtype(tensor, like)


def _check_dtype(tensor: torch.Tensor, like: torch.Tensor) -> None:
    found = f"expected tensors of one dtype, found {like.dtype} and {tensor.dtype}"
    _expect(tensor.dtype == like.dtype, TypeError, found)


def _check_size(tensor: torch.Tensor, like: torch.Tensor) -> None:
    found = f"invalid tensor size (expected {list(like.size())}, got {list(tensor.size())})"
    _expect(tensor.size() == like.size(), ValueError, found)


def _check_parts(group: CardGroup, parts: Tensors, like: torch.Tensor, root: int) -> None:
    if group.rank == root:
        _check_list(group, parts, like)
    for part in parts:
        _check_size(part, like)


def _check_whole(group: CardGroup, whole: torch.Tensor, part: torch.Tensor) -> None:
    _check_dtype(whole, part)
    found = f"expected world_size * {part.numel()} elements, found {whole.numel()}"
    _expect(whole.numel() == group.size * part.numel(), ValueError, found)


def _check_splits(group: CardGroup, tensor: torch.Tensor, rows: Ints) -> None:
    first = tensor.size(0) if tensor.dim() else 0
    equal = "Tensor's dim 0 does not divide equally across group size"
    _expect(bool(rows) or first % group.size == 0, RuntimeError, equal)
    count = "Number of tensor splits not equal to group size"
    _expect(len(rows) in (0, group.size), RuntimeError, count)
    fits = not rows or (sum(rows) == first and min(rows) >= 0)
    _expect(fits, RuntimeError, "Split sizes doesn't match total dim 0 size")


# --- the operators ----------------------------------------------------------------------------


def _tensors_of(args: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors of arguments and of the lists among them."""
    for argument in args:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, list):
            yield from _tensors_of(argument)


def _kernel(operator: str, name: str, prepare: Callable[..., Job], lane: str = "") -> Any:
    """The kernel of an operator of c10d, whose last arguments may be ``async_op`` and timeout.

    ``name``: of the operation in messages. ``prepare``: checks the other arguments, with the
    `CardGroup` in place of the process group, and returns the job for `CardGroup.submit`.
    ``lane``: formatted with the arguments by name.
    """
    schema = schema_of(getattr(torch.ops.c10d, operator).default)
    names = [argument.name for argument in schema.arguments]
    at = names.index("process_group")
    count = names.index("async_op") if "async_op" in names else len(names)
    ranks = [k for k, argument in enumerate(names) if argument in ("root_rank", "src", "dst")]
    writes = operator.endswith("_")  # to its first argument, as everywhere in torch

    def kernel(*args: Any) -> Any:
        group = group_of(args[at])
        for k in ranks:
            _expect(0 <= args[k] < group.size, RuntimeError, f"no rank {args[k]} in the group")
        job = prepare(*args[:at], group, *args[at + 1 : count])
        tensors = list(_tensors_of(args))
        result = args[0] if isinstance(args[0], list) else [args[0]]
        is_async = args[count] if len(args) > count else True
        timeout = args[count + 1] if len(args) > count + 1 else -1
        thread = lane.format(**dict(zip(names, args, strict=False)))
        work = group.submit(
            name, tensors, job, result if writes else [], timeout, thread, is_async=is_async
        )
        return work if len(schema.returns) == 1 else (args[0], work)

    return kernel


def _in_order(jobs: Iterable[Job]) -> Job:
    """Several operations as one."""

    def run_all(checked: Sequence[Job]) -> None:
        for job in checked:
            job()

    return partial(run_all, list(jobs))


def _one(tensors: Tensors) -> torch.Tensor:
    if len(tensors) != 1:
        raise unsupported("operation on several tensors per rank", "call it once per tensor")
    return tensors[0]


def _reducing(tensors: Any, group: CardGroup, reduce_op: Any, *more: Any) -> Job:
    """``more``: the root's rank and tensor of a reduction to one rank."""
    root = more[0] if len(more) > 1 else None
    return partial(_reduce, group, tensors, _operator(reduce_op, tensors), root)


def _all_reducing(tensors: Any, group: CardGroup, reduce_op: Any, sparse_indices: Any) -> Job:
    if sparse_indices is not None:
        raise unsupported("sparse reduction", "make the tensor dense")
    return _reducing(tensors, group, reduce_op)


def _broadcasting(tensors: Any, group: CardGroup, root: int, _: int) -> Job:
    return partial(_broadcast, group, tensors, root)


def _gathering(parts: Tensors, own: torch.Tensor, group: CardGroup) -> Job:
    _check_list(group, parts, own)
    _check_size(parts[group.rank], own)
    return partial(_all_gather, group, parts, own)


def _gathering_base(out: torch.Tensor, own: torch.Tensor, group: CardGroup) -> Job:
    _check_whole(group, out, own)
    return partial(_all_gather_base, group, out, own)


def _gathering_lists(outs: Any, tensors: Any, group: CardGroup) -> Job:
    """``outs[rank][k]`` receives tensor k of a rank."""
    by_tensor = zip(zip(*outs, strict=True), tensors, strict=True)
    return _in_order(_gathering(parts, own, group) for parts, own in by_tensor)


def _gathering_to_one(outs: Any, tensors: Any, group: CardGroup, root: int) -> Job:
    own, parts = _one(tensors), outs[0] if outs else []
    _check_parts(group, parts, own, root)
    return partial(_gather, group, parts, own, root)


def _reducing_parts(outs: Any, parts: Any, group: CardGroup, reduce_op: Any) -> Job:
    out, own = _one(outs), _one(parts)
    _check_list(group, own, out)
    if own[group.rank].numel() != out.numel():
        _check_size(own[group.rank], out)
    return partial(_reduce_parts, group, out, own, _operator(reduce_op, own))


def _reducing_base(out: Any, whole: Any, group: CardGroup, reduce_op: Any) -> Job:
    _check_whole(group, whole, out)
    return partial(_reduce_scatter, group, out, whole, _operator(reduce_op, [whole]))


def _scattering(outs: Any, parts: Any, group: CardGroup, root: int) -> Job:
    out, own = _one(outs), parts[0] if parts else []
    _check_parts(group, own, out, root)
    return partial(_scatter, group, out, own, root)


def _exchanging(outs: Any, parts: Any, group: CardGroup) -> Job:
    for tensors in (outs, parts):
        _check_list(group, tensors, outs[0])
    _check_size(parts[group.rank], outs[group.rank])
    return partial(_all_to_all, group, outs, parts)


def _exchanging_rows(
    out: Any, whole: Any, group: CardGroup, out_splits: Any, in_splits: Any
) -> Job:
    _check_dtype(out, whole)
    for tensor, rows in ((out, out_splits), (whole, in_splits)):
        _check_splits(group, tensor, rows)
    return partial(_all_to_all_base, group, out, whole, out_splits, in_splits)


def _from_any(*_: Any) -> Job:
    """Raise an error, because the sender's rank could not be returned to the receiver."""
    raise unsupported("recv from any source", "name the source rank")


def _each_pair(prepare: Callable[..., Job]) -> Callable[..., Job]:
    """``prepare`` for lists of the first two arguments."""
    return lambda outs, owns, *more: _in_order(
        prepare(*pair, *more) for pair in zip(outs, owns, strict=True)
    )


_OPERATORS: tuple[tuple[str, str, Callable[..., Job]], ...] = (
    ("allreduce_", "all_reduce", _all_reducing),
    ("allreduce_coalesced_", "all_reduce_coalesced", _reducing),
    ("broadcast_", "broadcast", _broadcasting),
    ("reduce_", "reduce", _reducing),
    (
        "allgather_",
        "all_gather",
        lambda outs, tensors, group: _gathering(_one(outs), _one(tensors), group),
    ),
    ("_allgather_base_", "all_gather_into_tensor", _gathering_base),
    (
        "allgather_into_tensor_coalesced_",
        "all_gather_into_tensor_coalesced",
        _each_pair(_gathering_base),
    ),
    ("allgather_coalesced_", "all_gather_coalesced", _gathering_lists),
    ("reduce_scatter_", "reduce_scatter", _reducing_parts),
    ("_reduce_scatter_base_", "reduce_scatter_tensor", _reducing_base),
    (
        "reduce_scatter_tensor_coalesced_",
        "reduce_scatter_tensor_coalesced",
        _each_pair(_reducing_base),
    ),
    ("gather_", "gather", _gathering_to_one),
    ("scatter_", "scatter", _scattering),
    ("alltoall_", "all_to_all", _exchanging),
    ("alltoall_base_", "all_to_all_single", _exchanging_rows),
    # it also waits for earlier work of the caller's streams
    ("barrier", "barrier", lambda _, group, ids: lambda: group.communicator.barrier("")),
    ("recv_any_source_", "recv", _from_any),
)
"""Operators of c10d, the functions of `torch.distributed` that call them, and their checks."""


def _message(run: Callable[..., None]) -> Callable[..., Job]:
    return lambda tensors, group, peer, tag: partial(run, group, _one(tensors), peer, tag)


KERNELS: dict[str, Callable[..., Any]] = {
    **{operator: _kernel(operator, name, prepare) for operator, name, prepare in _OPERATORS},
    "send": _kernel("send", "send", _message(_send), "to {dst} tag {tag}"),
    "recv_": _kernel("recv_", "recv", _message(_receive), "from {src} tag {tag}"),
}
"""Kernels by name of the operator of c10d."""
