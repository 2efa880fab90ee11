"""``createSpyreCCLBackend`` and the collectives that torch-spyre compiles, over those of this
package's own device.

As in the extension, tensors have to be contiguous, and only float16 is summed. Other operations of
backend ``spyreccl`` are refused, as on the card. The extension has one communicator, the world's,
which also serves names of groups that do not exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from spyre.frontend.tensors import record_of
from spyre.torch_backend.device import NAMES
from spyre.torch_backend.distributed import compat, group, operators
from spyre.torch_backend.registration import patches
from spyre.torch_backend.tensors import DeviceBuffer, StorageLayout, buffer_of

_SUMS = ("allreduce_", "reduce_")
_MOVES = ("broadcast_", "allgather_", "gather_", "barrier", "send", "recv_")
"""Operators of c10d that the extension implements."""


def create_backend(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """Open a process group of cards and return its C++ backend; blocks until all ranks join."""
    _register_once()
    ranks = {"group_rank": rank, "group_size": size}
    return group.open_group(SimpleNamespace(store=store, timeout=timeout, group_id="", **ranks))


@functools.cache
def _register_once() -> None:
    compat.keep_imports_from_dynamo()
    kernels = {name: _checked(name, kernel) for name, kernel in operators.KERNELS.items()}
    compat.implement_c10d(kernels, group.raise_failure_of)
    patches.install_named(("collective_works", "destroy"))


def _checked(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an operator, behind the checks of the extension."""

    @functools.wraps(kernel)
    def call(*args: Any) -> Any:
        if name not in _SUMS + _MOVES:
            raise operators.unsupported(
                name.strip("_"), "torch-spyre's backend has none on the card either"
            )
        if name in _SUMS:
            _check_sum(args[0], args[2])
        for tensor in tree_leaves([a for a in args if isinstance(a, (list, torch.Tensor))]):
            show_layout(tensor)
        return kernel(*args)

    return call


def _check_sum(tensors: Any, reduce_op: Any) -> None:
    operator = reduce_op if isinstance(reduce_op, str) else compat.reduce_op_name(reduce_op)
    for tensor in tensors:
        if (operator, tensor.dtype) != ("sum", torch.float16):
            raise operators.unsupported(f"{operator} of {tensor.dtype}", "the card adds float16")


def show_layout(tensor: torch.Tensor) -> None:
    """Give a tensor's buffer the layout of its record, which the collectives read there.

    RuntimeError for a tensor that is not contiguous.
    """
    if not tensor.is_contiguous():
        raise RuntimeError("spyreccl: the tensor has to be contiguous")
    if tensor.device.type == "spyre" and tensor.numel():
        record, name = record_of(tensor), NAMES[tensor.dtype]
        buffer_of(tensor).base = StorageLayout.of(record.sizes, record.strides, name, record.layout)


# --- compiled collectives -------------------------------------------------------------------------

_pending: WeakKeyDictionary[DeviceBuffer, Any] = WeakKeyDictionary()
"""Works that `wait_work` waits for, by the buffer they write."""


def broadcast_async(tensor: torch.Tensor, src_rank: int, group_name: str) -> torch.Tensor:
    """spyre::broadcast_async: a new tensor with the content of rank ``src_rank``, once waited
    for.
    """
    ranks, output = compat.group_named(group_name), torch.empty_like(tensor)
    if ranks.rank() == src_rank:
        show_layout(tensor)
        show_layout(output)
        operators.copy_from(tensor, output)
    options = dist.BroadcastOptions()
    options.rootRank, options.asyncOp = src_rank, True
    _remember(output, ranks.broadcast([output], options))
    return output


def all_reduce_async(
    tensor: torch.Tensor, reduce_op: str = "sum", group_name: str = "default"
) -> torch.Tensor:
    """spyre::all_reduce_async: in place; returns the tensor."""
    _check_sum([tensor], reduce_op)
    options = dist.AllreduceOptions()
    options.asyncOp = True
    _remember(tensor, compat.group_named(group_name).allreduce([tensor], options))
    return tensor


def wait_work(tensor: torch.Tensor) -> torch.Tensor:
    """spyre::wait_work: wait for the transfer of `broadcast_async` or `all_reduce_async`."""
    work = _pending.pop(buffer_of(tensor), None)
    if work is None:
        raise RuntimeError("No pending async work found for tensor")
    work.wait()
    return tensor


def _remember(tensor: torch.Tensor, work: Any) -> None:
    if _pending.setdefault(buffer_of(tensor), work) is not work:
        raise RuntimeError("a collective is pending on this memory: wait_work has to come first")


OPERATORS = {
    "broadcast_async(Tensor input, int src_rank, str group_name) -> Tensor": broadcast_async,
    'all_reduce_async(Tensor(a!) input, str reduce_op="sum", str group_name="default") '
    "-> Tensor(a)": all_reduce_async,
    "wait_work(Tensor(a!) tensor) -> Tensor(a)": wait_work,
}
"""Of namespace spyre, by schema."""
