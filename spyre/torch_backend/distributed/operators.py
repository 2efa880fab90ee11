"""The operators of ``torch.ops.c10d`` on cards, as jobs of a `CardGroup`.

All of torch (functional collectives, the reducer of DDP, DTensor, FSDP) calls these. A tensor is
sent as its sticks if all ranks can derive this from the operation and the sizes, else as codes in C
order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, wraps
from inspect import signature
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from spyre.errors import SpyreError
from spyre.hw.device import Combiner
from spyre.hw.numerics import Numerics
from spyre.runtime.comms import CollectiveError, CollectiveRecord, Deadline, padded, text_of
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
    numerics = buffer_of(tensor).card.device.numerics
    return Combiner("sum" if operator == "avg" else operator, name_of(tensor.dtype), numerics)


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


def _reduce(
    group: CardGroup, tensors: Tensors, operator: str, root: int | None, deadline: Deadline
) -> None:
    """``root``: the rank that gets the results; None for all ranks."""
    for tensor in tensors:
        combiner, target = _combiner(operator, tensor), _addends(operator, tensor)
        run, detail = sticks(target)[0], f"{operator} {_detail(tensor)}"
        if root is None:
            group.communicator.all_reduce(run, combiner, detail, deadline)
        else:
            group.communicator.reduce(run, root, combiner, detail, deadline)
        if root in (None, group.rank):
            _copy_back(target, tensor)
            _finish(operator, group, tensor)


def _reduce_scatter(
    group: CardGroup, out: torch.Tensor, whole: torch.Tensor, operator: str, deadline: Deadline
) -> None:
    """``whole``: the parts of all ranks in one tensor."""
    source = _addends(operator, whole)
    parts = slices(source, tuple(out.size()), group.size) if out.numel() else None
    if parts is None:
        flat = source.reshape(group.size, *out.size())
        _reduce_parts(group, out, [flat[k] for k in range(group.size)], operator, deadline)
        return
    target = plain(out)
    combiner, detail = _combiner(operator, out), f"{operator} {_detail(out)}"
    rows = sticks(target).reshape(parts[0].shape)
    group.communicator.reduce_scatter(rows, parts, combiner, detail, deadline)
    _copy_back(target, out)
    _finish(operator, group, out)


def _reduce_parts(
    group: CardGroup, out: torch.Tensor, parts: Tensors, operator: str, deadline: Deadline
) -> None:
    """Reduce this rank's part over all ranks into ``out``; parts may differ in size."""
    like = parts[group.rank]
    combiner = _combiner(operator, like)
    shaped = out if out.size() == like.size() else out.view(like.size())
    target = plain(shaped)
    rows = [sticks(_addends(operator, part)) for part in parts]
    detail = f"{operator} {_details(parts)}"
    group.communicator.reduce_scatter(sticks(target), rows, combiner, detail, deadline)
    _copy_back(target, shaped)
    _finish(operator, group, out)


# --- copies -----------------------------------------------------------------------------------


def _broadcast(group: CardGroup, tensors: Tensors, root: int, deadline: Deadline) -> None:
    for tensor in tensors:
        target = plain(tensor)
        group.communicator.broadcast(sticks(target), root, _detail(tensor), deadline)
        if group.rank != root:
            _copy_back(target, tensor)


@contextmanager
def _receiving(outs: Tensors) -> Iterator[list[Bytes]]:
    """Give the sticks of plain forms of ``outs`` to fill."""
    targets = [plain(out) for out in outs]
    yield [sticks(target) for target in targets]
    for target, out in zip(targets, outs, strict=True):
        _copy_back(target, out)


def _all_gather(group: CardGroup, outs: Tensors, own: torch.Tensor, deadline: Deadline) -> None:
    """``outs``: a tensor per rank; they may differ in size."""
    source = plain(own)
    with _receiving(outs) as rows:
        group.communicator.all_gather(rows, sticks(source), _details(outs), deadline)


def _all_gather_base(
    group: CardGroup, whole: torch.Tensor, own: torch.Tensor, deadline: Deadline
) -> None:
    """``whole``: the parts of all ranks in one tensor."""
    target, detail = plain(whole), _detail(own)
    parts = slices(target, tuple(own.size()), group.size) if own.numel() else None
    if parts is not None:
        source = sticks(plain(own)).reshape(parts[0].shape)
        group.communicator.all_gather(parts, source, detail, deadline)
        _copy_back(target, whole)
        return
    content = np.empty((group.size, code_bytes(own)), np.uint8)
    rows = [content[k : k + 1] for k in range(group.size)]
    group.communicator.all_gather(rows, codes(own), f"{detail} in C order", deadline)
    put_codes(whole, content)


def _gather(
    group: CardGroup, outs: Tensors, own: torch.Tensor, root: int, deadline: Deadline
) -> None:
    source = plain(own)
    with _receiving(outs) as rows:
        group.communicator.gather(rows, sticks(source), root, _detail(own), deadline)


def _scatter(
    group: CardGroup, out: torch.Tensor, parts: Tensors, root: int, deadline: Deadline
) -> None:
    rows = [sticks(plain(part)) for part in parts]
    with _receiving([out]) as (target,):
        group.communicator.scatter(target, rows, root, _detail(out), deadline)


def _all_to_all(group: CardGroup, outs: Tensors, parts: Tensors, deadline: Deadline) -> None:
    detail = name_of(outs[0].dtype)
    sent, wanted = ([str(list(part.size())) for part in some] for some in (parts, outs))
    group.communicator.agree(sent, wanted, detail, deadline)
    rows = [sticks(plain(part)) for part in parts]
    with _receiving(outs) as received:
        group.communicator.all_to_all(received, rows, detail, deadline)


def _all_to_all_base(
    group: CardGroup,
    out: torch.Tensor,
    whole: torch.Tensor,
    out_rows: Sequence[int],
    whole_rows: Sequence[int],
    deadline: Deadline,
) -> None:
    """Exchange rows along the first dim: ``out_rows`` from and ``whole_rows`` to each rank; empty
    for equal numbers.
    """
    sent_rows, received_rows = _rows(whole, whole_rows, group), _rows(out, out_rows, group)
    detail = f"{name_of(out.dtype)} rows of {list(out.size()[1:])}"
    offered, wanted = ([f"{k} rows" for k in rows] for rows in (sent_rows, received_rows))
    group.communicator.agree(offered, wanted, detail, deadline)
    content = codes(whole)
    result = np.empty((1, code_bytes(out)), np.uint8)
    received, sent = _split(result, received_rows), _split(content, sent_rows)
    group.communicator.all_to_all(received, sent, detail, deadline)
    put_codes(out, result)


def _rows(tensor: torch.Tensor, rows: Sequence[int], group: CardGroup) -> list[int]:
    """Return the number of rows per rank along the first dim: ``rows``, or equal ones."""
    return list(rows) or [tensor.size(0) // group.size] * group.size


def _split(content: Bytes, rows: Sequence[int]) -> list[Bytes]:
    edges = np.cumsum([0, *rows]) * (content.shape[1] // max(1, sum(rows)))
    return [content[:, start:end] for start, end in pairwise(edges)]


# --- point to point: messages between hosts' memories -----------------------------------------


def _send(group: CardGroup, tensor: torch.Tensor, peer: int, tag: int, deadline: Deadline) -> None:
    begin_ns = time.perf_counter_ns()
    for message in (_header(tensor), torch.from_numpy(codes(tensor)[0])):
        if message.numel():
            _finish_message(group.gloo.send([message], peer, tag), peer, deadline)
    group.note(_message_record("send", f"send to {peer}", group, tensor, peer, begin_ns))


def _receive(
    group: CardGroup, tensor: torch.Tensor, peer: int, tag: int, deadline: Deadline
) -> None:
    begin_ns = time.perf_counter_ns()
    expected, header = text_of(_header(tensor).numpy()), _header(tensor)
    _finish_message(group.gloo.recv([header], peer, tag), peer, deadline)
    found = text_of(header.numpy())
    content = torch.empty(int(found.partition(" ")[0]), dtype=torch.uint8, device="cpu")
    if content.numel():
        _finish_message(group.gloo.recv([content], peer, tag), peer, deadline)
    if found != expected:
        raise CollectiveError(
            "SPY952",
            "two ranks do not exchange the same tensor",
            expected=f"{expected} (rank {group.rank})",
            found=f"{found} (rank {peer})",
        )
    put_codes(tensor, content.numpy().reshape(1, -1))
    group.note(_message_record("recv", f"recv from {peer}", group, tensor, peer, begin_ns))


def _finish_message(work: Any, peer: int, deadline: Deadline) -> None:
    try:
        work.wait(compat.milliseconds(deadline.seconds_left))
    except RuntimeError as error:
        ended = f"a message from or to rank {peer}: the connection has ended"
        late = f"a message from or to rank {peer}: not done within {deadline.timeout:g} s"
        is_late, found = deadline.seconds_left == 0, str(error).splitlines()[0]
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


def _check_whole(group: CardGroup, whole: torch.Tensor, part: torch.Tensor) -> None:
    _check_dtype(whole, part)
    found = f"expected world_size * {part.numel()} elements, found {whole.numel()}"
    _expect(whole.numel() == group.size * part.numel(), ValueError, found)


def _check_splits(group: CardGroup, tensor: torch.Tensor, rows: Sequence[int]) -> None:
    first = tensor.size(0) if tensor.dim() else 0
    equal = "Tensor's dim 0 does not divide equally across group size"
    _expect(bool(rows) or first % group.size == 0, RuntimeError, equal)
    count = "Number of tensor splits not equal to group size"
    _expect(len(rows) in (0, group.size), RuntimeError, count)
    fits = not rows or (sum(rows) == first and min(rows) >= 0)
    _expect(fits, RuntimeError, "Split sizes doesn't match total dim 0 size")


# --- the operators ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Operation:
    """A checked call, arguments of `CardGroup.submit`. ``returned``: beside the work, if any."""

    name: str
    tensors: Tensors
    job: Job
    result: list[Any]
    returned: Any = None
    lane: str = ""


KERNELS: dict[str, Callable[..., Any]] = {}
"""By name of the operator of c10d."""


def _kernel(prepare: Callable[..., _Operation]) -> Callable[..., Any]:
    """Add to `KERNELS` an operator of c10d, whose last arguments are ``async_op`` and timeout.

    ``prepare`` checks the others, of which ``group`` is the operator's process group.
    """
    names = list(signature(prepare).parameters)
    at, count = names.index("group"), len(names)
    ranks = [names.index(name) for name in ("root_rank", "peer") if name in names]

    @wraps(prepare)
    def kernel(*args: Any) -> Any:
        group = group_of(args[at])
        for k in ranks:
            _expect(0 <= args[k] < group.size, RuntimeError, f"no rank {args[k]} in the group")
        call = prepare(*args[:at], group, *args[at + 1 : count])
        is_async = args[count] if len(args) > count else True
        timeout = args[count + 1] if len(args) > count + 1 else -1
        work = group.submit(
            call.name, call.tensors, call.job, call.result, timeout, call.lane, is_async=is_async
        )
        return work if call.returned is None else (call.returned, work)

    KERNELS[prepare.__name__] = kernel
    return kernel


def _in_order(jobs: Sequence[Job], deadline: Deadline) -> None:
    for job in jobs:
        job(deadline)


def _one(tensors: Tensors) -> torch.Tensor:
    if len(tensors) != 1:
        raise unsupported("operation on several tensors per rank", "call it once per tensor")
    return tensors[0]


@_kernel
def allreduce_(tensors: Any, group: Any, reduce_op: Any, sparse_indices: Any) -> _Operation:
    """See `torch.distributed.all_reduce`."""
    if sparse_indices is not None:
        raise unsupported("sparse reduction", "make the tensor dense")
    job = partial(_reduce, group, tensors, _operator(reduce_op, tensors), None)
    return _Operation("all_reduce", tensors, job, tensors, tensors)


@_kernel
def allreduce_coalesced_(tensors: Any, group: Any, reduce_op: Any) -> _Operation:
    """See `torch.distributed.all_reduce_coalesced`."""
    job = partial(_reduce, group, tensors, _operator(reduce_op, tensors), None)
    return _Operation("all_reduce_coalesced", tensors, job, tensors)


@_kernel
def broadcast_(tensors: Any, group: Any, root_rank: int, root_tensor: int) -> _Operation:
    """See `torch.distributed.broadcast`."""
    job = partial(_broadcast, group, tensors, root_rank)
    return _Operation("broadcast", tensors, job, tensors, tensors)


@_kernel
def reduce_(
    tensors: Any, group: Any, reduce_op: Any, root_rank: int, root_tensor: int
) -> _Operation:
    """See `torch.distributed.reduce`."""
    job = partial(_reduce, group, tensors, _operator(reduce_op, tensors), root_rank)
    return _Operation("reduce", tensors, job, tensors)


def _gathering(group: CardGroup, parts: Tensors, own: torch.Tensor) -> Job:
    _check_list(group, parts, own)
    _check_size(parts[group.rank], own)
    return partial(_all_gather, group, parts, own)


def _gathering_base(group: CardGroup, out: torch.Tensor, own: torch.Tensor) -> Job:
    _check_whole(group, out, own)
    return partial(_all_gather_base, group, out, own)


@_kernel
def allgather_(outs: Any, tensors: Any, group: Any) -> _Operation:
    """See `torch.distributed.all_gather`."""
    own, parts = _one(tensors), _one(outs)
    return _Operation("all_gather", [*parts, own], _gathering(group, parts, own), outs, outs)


@_kernel
def _allgather_base_(out: Any, own: Any, group: Any) -> _Operation:
    """See `torch.distributed.all_gather_into_tensor`."""
    job = _gathering_base(group, out, own)
    return _Operation("all_gather_into_tensor", [out, own], job, [out], out)


@_kernel
def allgather_into_tensor_coalesced_(outs: Any, tensors: Any, group: Any) -> _Operation:
    """Several `_allgather_base_` in one operation."""
    jobs = [_gathering_base(group, *pair) for pair in zip(outs, tensors, strict=True)]
    job = partial(_in_order, jobs)
    return _Operation("all_gather_into_tensor_coalesced", [*outs, *tensors], job, outs)


@_kernel
def allgather_coalesced_(outs: Any, tensors: Any, group: Any) -> _Operation:
    """Gather several tensors: ``outs[rank][k]`` receives tensor k of a rank."""
    by_tensor = zip(zip(*outs, strict=True), tensors, strict=True)
    jobs = [_gathering(group, parts, own) for parts, own in by_tensor]
    flat = [tensor for parts in outs for tensor in parts]
    return _Operation("all_gather_coalesced", [*flat, *tensors], partial(_in_order, jobs), flat)


@_kernel
def reduce_scatter_(outs: Any, parts: Any, group: Any, reduce_op: Any) -> _Operation:
    """See `torch.distributed.reduce_scatter`."""
    out, own = _one(outs), _one(parts)
    _check_list(group, own, out)
    if own[group.rank].numel() != out.numel():
        _check_size(own[group.rank], out)
    job = partial(_reduce_parts, group, out, own, _operator(reduce_op, own))
    return _Operation("reduce_scatter", [out, *own], job, [out], outs)


def _scattering(group: CardGroup, out: torch.Tensor, whole: torch.Tensor, reduce_op: Any) -> Job:
    _check_whole(group, whole, out)
    return partial(_reduce_scatter, group, out, whole, _operator(reduce_op, [whole]))


@_kernel
def _reduce_scatter_base_(out: Any, whole: Any, group: Any, reduce_op: Any) -> _Operation:
    """See `torch.distributed.reduce_scatter_tensor`."""
    job = _scattering(group, out, whole, reduce_op)
    return _Operation("reduce_scatter_tensor", [out, whole], job, [out], out)


@_kernel
def reduce_scatter_tensor_coalesced_(
    outs: Any, wholes: Any, group: Any, reduce_op: Any
) -> _Operation:
    """Several `_reduce_scatter_base_` in one operation."""
    jobs = [_scattering(group, *pair, reduce_op) for pair in zip(outs, wholes, strict=True)]
    job = partial(_in_order, jobs)
    return _Operation("reduce_scatter_tensor_coalesced", [*outs, *wholes], job, outs)


@_kernel
def gather_(outs: Any, tensors: Any, group: Any, root_rank: int) -> _Operation:
    """See `torch.distributed.gather`."""
    own, parts = _one(tensors), outs[0] if outs else []
    if group.rank == root_rank:
        _check_list(group, parts, own)
    for part in parts:
        _check_size(part, own)
    job = partial(_gather, group, parts, own, root_rank)
    return _Operation("gather", [*parts, own], job, outs)


@_kernel
def scatter_(outs: Any, parts: Any, group: Any, root_rank: int) -> _Operation:
    """See `torch.distributed.scatter`."""
    out, own = _one(outs), parts[0] if parts else []
    if group.rank == root_rank:
        _check_list(group, own, out)
    for part in own:
        _check_size(part, out)
    job = partial(_scatter, group, out, own, root_rank)
    return _Operation("scatter", [out, *own], job, [out], outs)


@_kernel
def alltoall_(outs: Any, parts: Any, group: Any) -> _Operation:
    """See `torch.distributed.all_to_all`."""
    for tensors in (outs, parts):
        _check_list(group, tensors, outs[0])
    _check_size(parts[group.rank], outs[group.rank])
    job = partial(_all_to_all, group, outs, parts)
    return _Operation("all_to_all", [*outs, *parts], job, outs, outs)


@_kernel
def alltoall_base_(out: Any, whole: Any, group: Any, out_splits: Any, in_splits: Any) -> _Operation:
    """See `torch.distributed.all_to_all_single`."""
    _check_dtype(out, whole)
    for tensor, rows in ((out, out_splits), (whole, in_splits)):
        _check_splits(group, tensor, rows)
    job = partial(_all_to_all_base, group, out, whole, out_splits, in_splits)
    return _Operation("all_to_all_single", [out, whole], job, [out])


@_kernel
def barrier(tensor: Any, group: Any, device_ids: Any) -> _Operation:
    """See `torch.distributed.barrier`; also waits for earlier work of the caller's streams."""

    def meet(deadline: Deadline) -> None:
        group.communicator.barrier("", deadline)

    return _Operation("barrier", [tensor], meet, [])


@_kernel
def send(tensors: Any, group: Any, peer: int, tag: int) -> _Operation:
    """See `torch.distributed.isend`."""
    tensor = _one(tensors)
    job = partial(_send, group, tensor, peer, tag)
    return _Operation("send", [tensor], job, [], lane=f"to {peer} tag {tag}")


@_kernel
def recv_(tensors: Any, group: Any, peer: int, tag: int) -> _Operation:
    """See `torch.distributed.irecv`."""
    tensor = _one(tensors)
    job = partial(_receive, group, tensor, peer, tag)
    return _Operation("recv", [tensor], job, [tensor], lane=f"from {peer} tag {tag}")


@_kernel
def recv_any_source_(tensors: Any, group: Any, tag: int) -> _Operation:
    """Raise an error, because the sender's rank could not be returned to the receiver."""
    raise unsupported("recv from any source", "name the source rank")
