"""The operators of ``torch.ops.c10d`` on cards, as jobs of a `CardGroup`.

All of torch (functional collectives, the reducer of DDP, DTensor, FSDP) calls these. A tensor is
sent as its sticks if all ranks can derive this from the operation and the sizes, else as codes in C
order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from spyre.hw.device import Combiner
from spyre.runtime.comms import CollectiveError, CollectiveRecord, Deadline
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
)
from spyre.torch_backend.tensors import buffer_of

Tensors = Sequence[torch.Tensor]


@cache
def register_operators() -> None:
    """Register the kernels of the operators for cards, once per process."""
    compat.keep_imports_from_dynamo()
    compat.implement_c10d({kernel.__name__: kernel for kernel in KERNELS}, raise_failure_of)


def _group(process_group: Any) -> CardGroup:
    name, rank = compat.name_of_process_group(process_group)
    return group_of(name, rank)


def _unsupported(feature: str, hint: str) -> CollectiveFailure:
    return CollectiveFailure(
        str(CollectiveError("SPY958", f"spyreccl has no {feature}", hint=hint))
    )


def _operator(reduce_op: Any) -> str:
    name = compat.reduce_op_name(reduce_op)
    if name == "premul_sum":
        raise _unsupported("premultiplied sum", "multiply the tensor before the reduction")
    return name


def _detail(tensor: torch.Tensor) -> str:
    return f"{name_of(tensor.dtype)} {list(tensor.size())}"


def _combiner(operator: str, tensor: torch.Tensor) -> Combiner:
    numerics = buffer_of(tensor).card.device.numerics
    return Combiner("sum" if operator == "avg" else operator, name_of(tensor.dtype), numerics)


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
        tensor.copy_(target)
        _synchronize(tensor)


# --- reductions -------------------------------------------------------------------------------


def _reduce(
    group: CardGroup, tensors: Tensors, operator: str, root: int | None, deadline: Deadline
) -> None:
    """``root``: the rank that gets the results; None for all ranks."""
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        combiner, target = _combiner(operator, tensor), plain(tensor)
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
    if out.numel() == 0:
        return
    source = plain(whole)
    parts = slices(source, tuple(out.size()), group.size)
    if parts is None:
        flat = plain(source.reshape(group.size, *out.size()))
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
    rows = [sticks(plain(part)) for part in parts]
    sizes = sorted({tuple(part.size()) for part in parts})
    detail = f"{operator} {name_of(out.dtype)} {[list(size) for size in sizes]}"
    group.communicator.reduce_scatter(sticks(target), rows, combiner, detail, deadline)
    _copy_back(target, shaped)
    _finish(operator, group, out)


# --- copies -----------------------------------------------------------------------------------


def _broadcast(group: CardGroup, tensors: Tensors, root: int, deadline: Deadline) -> None:
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        target = plain(tensor)
        group.communicator.broadcast(sticks(target), root, _detail(tensor), deadline)
        if group.rank != root:
            _copy_back(target, tensor)


def _all_gather(group: CardGroup, outs: Tensors, own: torch.Tensor, deadline: Deadline) -> None:
    """``outs``: a tensor per rank; they may differ in size."""
    targets, source = [plain(out) for out in outs], plain(own)
    rows = [sticks(target) for target in targets]
    detail = f"{name_of(outs[0].dtype)} {sum(out.numel() for out in outs)}"
    group.communicator.all_gather(rows, sticks(source), detail, deadline)
    for target, out in zip(targets, outs, strict=True):
        _copy_back(target, out)


def _all_gather_base(
    group: CardGroup, whole: torch.Tensor, own: torch.Tensor, deadline: Deadline
) -> None:
    """``whole``: the parts of all ranks in one tensor."""
    if own.numel() == 0:
        return
    target, detail = plain(whole), _detail(own)
    parts = slices(target, tuple(own.size()), group.size)
    if parts is not None:
        source = sticks(plain(own)).reshape(parts[0].shape)
        group.communicator.all_gather(parts, source, detail, deadline)
        _copy_back(target, whole)
        return
    content = np.empty((group.size, code_bytes(own)), np.uint8)
    rows = [content[k : k + 1] for k in range(group.size)]
    group.communicator.all_gather(rows, codes(own), detail, deadline)
    put_codes(whole, content)


def _gather(
    group: CardGroup, outs: Tensors, own: torch.Tensor, root: int, deadline: Deadline
) -> None:
    targets = [plain(out) for out in outs]
    rows = [sticks(target) for target in targets]
    group.communicator.gather(rows, sticks(plain(own)), root, name_of(own.dtype), deadline)
    for target, out in zip(targets, outs, strict=True):
        _copy_back(target, out)


def _scatter(
    group: CardGroup, out: torch.Tensor, parts: Tensors, root: int, deadline: Deadline
) -> None:
    target, rows = plain(out), [sticks(plain(part)) for part in parts]
    group.communicator.scatter(sticks(target), rows, root, name_of(out.dtype), deadline)
    _copy_back(target, out)


def _all_to_all(group: CardGroup, outs: Tensors, parts: Tensors, deadline: Deadline) -> None:
    targets, rows = [plain(out) for out in outs], [sticks(plain(part)) for part in parts]
    received = [sticks(target) for target in targets]
    group.communicator.all_to_all(received, rows, name_of(outs[0].dtype), deadline)
    for target, out in zip(targets, outs, strict=True):
        _copy_back(target, out)


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
    content = codes(whole)
    result = np.empty((1, code_bytes(out)), np.uint8)
    received = _split(result, out, out_rows, group.size)
    sent = _split(content, whole, whole_rows, group.size)
    group.communicator.all_to_all(received, sent, name_of(out.dtype), deadline)
    put_codes(out, result)


def _split(content: Bytes, tensor: torch.Tensor, rows: Sequence[int], ranks: int) -> list[Bytes]:
    first = tensor.size(0) if tensor.dim() else 0
    counts = list(rows) or [first // ranks] * ranks
    row_bytes = content.shape[1] // first if first else 0
    edges = np.cumsum([0, *counts]) * row_bytes
    return [content[:, edges[k] : edges[k + 1]] for k in range(ranks)]


# --- point to point: messages between hosts' memories -----------------------------------------


def _send(group: CardGroup, tensor: torch.Tensor, peer: int, tag: int, deadline: Deadline) -> None:
    begin_ns = time.perf_counter_ns()
    content = torch.from_numpy(codes(tensor)[0])
    for message in (_message_header(tensor), content):
        group.gloo.send([message], peer, tag).wait(compat.milliseconds(deadline.seconds_left))
    group.note(_message_record("send", f"send to {peer}", group, tensor, peer, begin_ns))


def _receive(
    group: CardGroup, tensor: torch.Tensor, peer: int, tag: int, deadline: Deadline
) -> None:
    begin_ns = time.perf_counter_ns()
    expected, header = _message_header(tensor), _message_header(tensor).clone()
    content = torch.empty(code_bytes(tensor), dtype=torch.uint8, device="cpu")
    group.gloo.recv([header], peer, tag).wait(compat.milliseconds(deadline.seconds_left))
    if not torch.equal(header, expected):
        raise CollectiveError(
            "SPY952",
            "two ranks do not exchange the same tensor",
            expected=f"{_text(expected)} (rank {group.rank})",
            found=f"{_text(header)} (rank {peer})",
        )
    group.gloo.recv([content], peer, tag).wait(compat.milliseconds(deadline.seconds_left))
    put_codes(tensor, content.numpy().reshape(1, -1))
    group.note(_message_record("recv", f"recv from {peer}", group, tensor, peer, begin_ns))


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


def _message_header(tensor: torch.Tensor) -> torch.Tensor:
    text = f"{name_of(tensor.dtype)} {tensor.numel()}".encode().ljust(_MESSAGE_HEADER_BYTES)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _text(header: torch.Tensor) -> str:
    return bytes(header.numpy()).decode(errors="replace").rstrip()


# --- the operators ----------------------------------------------------------------------------


def _in_order(jobs: Sequence[Job], deadline: Deadline) -> None:
    for job in jobs:
        job(deadline)


def _one(tensors: Tensors) -> torch.Tensor:
    if len(tensors) != 1:
        raise _unsupported("operation on several tensors per rank", "call it once per tensor")
    return tensors[0]


def allreduce_(
    tensors: Any,
    pg: Any,
    reduce_op: Any,
    sparse_indices: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    """See `torch.distributed.all_reduce`."""
    if sparse_indices is not None:
        raise _unsupported("sparse reduction", "make the tensor dense")
    group, tensors = _group(pg), list(tensors)
    job = partial(_reduce, group, tensors, _operator(reduce_op), None)
    return tensors, group.submit("all_reduce", tensors, job, tensors, timeout, is_async=async_op)


def allreduce_coalesced_(
    tensors: Any, pg: Any, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    """See `torch.distributed.all_reduce_coalesced`."""
    group, tensors = _group(pg), list(tensors)
    job = partial(_reduce, group, tensors, _operator(reduce_op), None)
    return group.submit("all_reduce_coalesced", tensors, job, tensors, timeout, is_async=async_op)


def broadcast_(
    tensors: Any,
    pg: Any,
    root_rank: int,
    root_tensor: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    """See `torch.distributed.broadcast`."""
    group, tensors = _group(pg), list(tensors)
    job = partial(_broadcast, group, tensors, root_rank)
    return tensors, group.submit("broadcast", tensors, job, tensors, timeout, is_async=async_op)


def reduce_(
    tensors: Any,
    pg: Any,
    reduce_op: Any,
    root_rank: int,
    root_tensor: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    """See `torch.distributed.reduce`."""
    group, tensors = _group(pg), list(tensors)
    job = partial(_reduce, group, tensors, _operator(reduce_op), root_rank)
    return group.submit("reduce", tensors, job, tensors, timeout, is_async=async_op)


def allgather_(outs: Any, tensors: Any, pg: Any, async_op: bool = True, timeout: int = -1) -> Any:
    """See `torch.distributed.all_gather`."""
    group, own, parts = _group(pg), _one(tensors), list(_one(outs))
    job = partial(_all_gather, group, parts, own)
    return outs, group.submit("all_gather", [*parts, own], job, parts, timeout, is_async=async_op)


def _allgather_base_(out: Any, own: Any, pg: Any, async_op: bool = True, timeout: int = -1) -> Any:
    """See `torch.distributed.all_gather_into_tensor`."""
    group = _group(pg)
    job = partial(_all_gather_base, group, out, own)
    return out, group.submit(
        "all_gather_into_tensor", [out, own], job, [out], timeout, is_async=async_op
    )


def allgather_into_tensor_coalesced_(
    outs: Any, tensors: Any, pg: Any, async_op: bool = True
) -> Any:
    """Several `_allgather_base_` in one operation."""
    group, outs = _group(pg), list(outs)
    pairs = zip(outs, tensors, strict=True)
    job = partial(_in_order, [partial(_all_gather_base, group, *pair) for pair in pairs])
    name = "all_gather_into_tensor_coalesced"
    return group.submit(name, [*outs, *tensors], job, outs, is_async=async_op)


def allgather_coalesced_(outs: Any, tensors: Any, pg: Any, async_op: bool = True) -> Any:
    """Gather several tensors: ``outs[rank][k]`` receives tensor k of a rank."""
    group = _group(pg)
    by_tensor = [list(parts) for parts in zip(*outs, strict=True)]
    pairs = zip(by_tensor, tensors, strict=True)
    job = partial(_in_order, [partial(_all_gather, group, *pair) for pair in pairs])
    flat = [tensor for parts in outs for tensor in parts]
    return group.submit("all_gather_coalesced", [*flat, *tensors], job, flat, is_async=async_op)


def reduce_scatter_(
    outs: Any, parts: Any, pg: Any, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    """See `torch.distributed.reduce_scatter`."""
    group, out, own = _group(pg), _one(outs), list(_one(parts))
    job = partial(_reduce_parts, group, out, own, _operator(reduce_op))
    return outs, group.submit("reduce_scatter", [out, *own], job, [out], timeout, is_async=async_op)


def _reduce_scatter_base_(
    out: Any, whole: Any, pg: Any, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    """See `torch.distributed.reduce_scatter_tensor`."""
    group = _group(pg)
    job = partial(_reduce_scatter, group, out, whole, _operator(reduce_op))
    return out, group.submit(
        "reduce_scatter_tensor", [out, whole], job, [out], timeout, is_async=async_op
    )


def reduce_scatter_tensor_coalesced_(
    outs: Any, wholes: Any, pg: Any, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    """Several `_reduce_scatter_base_` in one operation."""
    group, outs, operator = _group(pg), list(outs), _operator(reduce_op)
    pairs = zip(outs, wholes, strict=True)
    job = partial(_in_order, [partial(_reduce_scatter, group, *pair, operator) for pair in pairs])
    name = "reduce_scatter_tensor_coalesced"
    return group.submit(name, [*outs, *wholes], job, outs, timeout, is_async=async_op)


def gather_(
    outs: Any, tensors: Any, pg: Any, root_rank: int, async_op: bool = True, timeout: int = -1
) -> Any:
    """See `torch.distributed.gather`."""
    group, own = _group(pg), _one(tensors)
    parts = list(outs[0]) if outs else []
    job = partial(_gather, group, parts, own, root_rank)
    return group.submit("gather", [*parts, own], job, parts, timeout, is_async=async_op)


def scatter_(
    outs: Any, parts: Any, pg: Any, root_rank: int, async_op: bool = True, timeout: int = -1
) -> Any:
    """See `torch.distributed.scatter`."""
    group, out = _group(pg), _one(outs)
    own = list(parts[0]) if parts else []
    job = partial(_scatter, group, out, own, root_rank)
    return outs, group.submit("scatter", [out, *own], job, [out], timeout, is_async=async_op)


def alltoall_(outs: Any, parts: Any, pg: Any, async_op: bool = True, timeout: int = -1) -> Any:
    """See `torch.distributed.all_to_all`."""
    group, outs = _group(pg), list(outs)
    job = partial(_all_to_all, group, outs, list(parts))
    return outs, group.submit("all_to_all", [*outs, *parts], job, outs, timeout, is_async=async_op)


def alltoall_base_(
    out: Any,
    whole: Any,
    pg: Any,
    out_splits: Any,
    in_splits: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    """See `torch.distributed.all_to_all_single`."""
    group = _group(pg)
    job = partial(_all_to_all_base, group, out, whole, list(out_splits), list(in_splits))
    return group.submit("all_to_all_single", [out, whole], job, [out], timeout, is_async=async_op)


def barrier(tensor: Any, pg: Any, device_ids: Any, async_op: bool = True, timeout: int = -1) -> Any:
    """See `torch.distributed.barrier`; also waits for earlier work of the caller's streams."""
    group = _group(pg)
    job = partial(group.communicator.barrier, "")
    return group.submit("barrier", [tensor], job, [], timeout, is_async=async_op)


def send(tensors: Any, pg: Any, peer: int, tag: int) -> Any:
    """See `torch.distributed.isend`."""
    group, tensor = _group(pg), _one(tensors)
    job = partial(_send, group, tensor, peer, tag)
    return group.submit("send", [tensor], job, [], lane=f"to {peer}")


def recv_(tensors: Any, pg: Any, peer: int, tag: int) -> Any:
    """See `torch.distributed.irecv`."""
    group, tensor = _group(pg), _one(tensors)
    job = partial(_receive, group, tensor, peer, tag)
    return group.submit("recv", [tensor], job, [tensor], lane=f"from {peer}")


def recv_any_source_(tensors: Any, pg: Any, tag: int) -> Any:
    """Raise an error, because the sender's rank could not be returned to the receiver."""
    raise _unsupported("recv from any source", "name the source rank")


KERNELS: tuple[Any, ...] = (
    allreduce_,
    allreduce_coalesced_,
    broadcast_,
    reduce_,
    allgather_,
    _allgather_base_,
    allgather_into_tensor_coalesced_,
    allgather_coalesced_,
    reduce_scatter_,
    _reduce_scatter_base_,
    reduce_scatter_tensor_coalesced_,
    gather_,
    scatter_,
    alltoall_,
    alltoall_base_,
    barrier,
    send,
    recv_,
    recv_any_source_,
)
"""Each has the name of its operator."""
