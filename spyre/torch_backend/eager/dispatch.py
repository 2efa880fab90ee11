"""The dispatcher of eager operations: which kernel of an operation takes which arguments.

Every operation has a table of kernels by class of arguments; `call` asks them in turn, and the CPU
does what none of them takes. Most operations are registered as their ``out`` variant only: ATen
then makes the result (or takes the tensor to change in place) by the operation's own rules for
sizes and dtypes, and calls us to fill it.

For a functional variant ATen runs the operation's shape rules on meta tensors, makes the result by
way of the dispatcher and calls the ``out`` variant: as much work as the launch. Over plain operands
the result is the one the program would make anyway, and its dtype is theirs; `call_functional` does
these, and everything else goes ATen's way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import torch

from spyre.dtypes import HOST_DTYPES
from spyre.torch_backend.compat import COMPOSITE_KEYS, operator
from spyre.torch_backend.device import DTYPES
from spyre.torch_backend.eager.compile import Operand, ScalarOperand
from spyre.torch_backend.eager.launch import (
    flat,
    keep_record,
    known_call,
    launch_records,
    note_other_work,
    noting_launches,
    placement_of,
    run,
)
from spyre.torch_backend.fallback import cpu_fallback
from spyre.torch_backend.program import LoweringError, LoweringFunction, current_recorder
from spyre.torch_backend.tensors import set_storage

FLOATS = tuple(DTYPES[row.name] for row in HOST_DTYPES.values() if row.computed_as_float)
INTEGERS = (torch.int32, torch.int64)
COMPUTED = (*FLOATS, torch.bool)
"""dtypes the operations of the vector unit take, bool as 1.0 and 0.0."""
CONVERTED = (*COMPUTED, *INTEGERS)
"""dtypes that the card converts into each other."""


class ArgumentClass(StrEnum):
    """Classes of arguments that an operation may have a kernel for, in the order they are asked."""

    ZERO_SIZE = "zero size"
    INTEGER = "integer"
    BOOL = "bool"
    FLOAT = "float"
    ANY = "any"


ZERO_SIZE, INTEGER, BOOL, FLOAT, ANY = ArgumentClass


def always(*_: Any, **__: Any) -> bool:
    """For kernels that take every argument."""
    return True


def never(*_: Any) -> bool:
    """For operations that write to nothing they are given."""
    return False


@dataclass(frozen=True, slots=True)
class EagerKernel:
    """What runs an operation where ``takes`` is true; both are called with aten's arguments.

    ``run`` raises LoweringError where no program can be written; nothing has changed then.
    """

    run: Callable[..., Any]
    takes: Callable[..., bool] = always


KernelTable = Mapping[str, Mapping[ArgumentClass, EagerKernel]]
"""Kernels by aten name and class of arguments."""


@dataclass(frozen=True, slots=True, eq=False)
class EagerOperation:
    """An aten operation the card has kernels for, in the order they are asked.

    ``overload``: what runs on the CPU; None where that has no kernel either. ``promoted``: the
    arguments with integers as floats where torch promotes them, None where it does not.
    ``overlaps``: whether it writes to memory of which only the CPU knows what becomes; raises what
    it refuses. ``is_one_launch``: its kernels do nothing but fill ``out``.
    """

    name: str
    overload: Any
    kernels: tuple[EagerKernel, ...]
    promoted: Callable[..., tuple[Any, ...] | None] | None = None
    overlaps: Callable[[Sequence[Any], Mapping[str, Any]], bool] = never
    is_one_launch: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FunctionalVariant:
    """A functional variant that makes its result by the float kernel of the ``out`` variant.

    ``fits``: whether arguments are plain as well: what ATen checks before it calls the ``out``
    variant. ``tensors``: how many of its arguments are tensors. ``any_strides``: its result is
    contiguous whatever they are.
    """

    overload: Any
    kernel: EagerKernel
    fits: Callable[..., bool]
    tensors: int
    any_strides: bool = False


@dataclass(frozen=True, slots=True)
class NewResult:
    """Given in place of ``out``: the kernel is to make its result, in ``dtype``.

    What it has no program for it refuses with LoweringError.
    """

    dtype: torch.dtype


def call(operation: EagerOperation, *args: Any, **kwargs: Any) -> Any:
    """Run an operation by the first kernel that takes the arguments, else on the CPU.

    The CPU also does what no program can be written for; trying has changed nothing.
    """
    if not operation.is_one_launch or kwargs.keys() != {"out"} or current_recorder() is not None:
        return _call(operation, *args, **kwargs)
    out = kwargs["out"]
    known = known_call(operation, args, out)
    if known is None:
        return _call(operation, *args, **kwargs)
    record = launch_records.get(known.key)
    if record is not None:
        try:
            record.launch(known.buffers, known.target)
        except Exception as error:
            error.add_note(f"in aten::{operation.name} on spyre")
            raise
        return out
    placement = placement_of(out)
    with noting_launches() as launches:
        result = _call(operation, *args, **kwargs)
    # one that was resized meanwhile is another call
    if placement_of(out) == placement:
        keep_record(known, out, launches)
    return result


def filling(name: str, run: Callable[..., Any]) -> EagerOperation:
    """What kernels of several results, or of results they make themselves, do to fill one by a
    launch: an operation for `call`.
    """
    return EagerOperation(name, None, (EagerKernel(run),), is_one_launch=True)


def _call(operation: EagerOperation, *args: Any, **kwargs: Any) -> Any:
    if operation.overlaps(args, kwargs):
        return _on_cpu(operation, *args, **kwargs)
    try:
        for kernel in operation.kernels:
            if kernel.takes(*args, **kwargs):
                return kernel.run(*args, **kwargs)
    except LoweringError:
        if current_recorder() is not None or operation.overload is None:
            raise
    except Exception as error:
        error.add_note(f"in aten::{operation.name} on spyre")
        raise
    else:
        promoted = operation.promoted(*args, **kwargs) if operation.promoted else None
        if promoted is not None:
            return _call(operation, *promoted, **kwargs)
        if current_recorder() is not None:
            raise LoweringError(f"{operation.name} of operands the cores do not take")
    return _on_cpu(operation, *args, **kwargs)


def _on_cpu(operation: EagerOperation, *args: Any, **kwargs: Any) -> Any:
    note_other_work()
    return cpu_fallback(operation.overload, *args, **kwargs)


def call_functional(variant: FunctionalVariant, *args: Any, **kwargs: Any) -> Any:
    """Run a functional variant over plain operands; else as ATen does."""
    known = None if kwargs or current_recorder() is not None else known_call(variant, args)
    try:
        if known is not None and (record := launch_records.get(known.key)) is not None:
            return record.launch(known.buffers)[0]
        with noting_launches() as launches:
            result = _launched(variant, args, kwargs)
    except LoweringError:
        result = None  # perhaps with another layout of the result
    except Exception as error:
        error.add_note(f"in {variant.overload} on spyre")
        raise
    if result is None:
        with noting_launches() as launches:
            result = _as_aten(variant, args, kwargs)
    if known is not None:
        keep_record(known, result, launches)
    return result


def _as_aten(variant: FunctionalVariant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if any(isinstance(value, (int, float, complex)) for value in args[: variant.tensors]):
        return _call_with_number(variant.overload, args, kwargs)
    return variant.overload.redispatch(COMPOSITE_KEYS, *args, **kwargs)


def _launched(
    variant: FunctionalVariant, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor | None:
    """The result, by the kernel; None if ATen is to go on.

    LoweringError where no program can be written.
    """
    dtype = plain_dtype(args, variant.any_strides)
    if dtype is None or not variant.fits(*args, **kwargs):
        return None
    new = NewResult(dtype)
    if not variant.kernel.takes(*args, **kwargs, out=new):
        return None
    result: torch.Tensor = variant.kernel.run(*args, **kwargs, out=new)
    return result


def _call_with_number(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation of a tensor with a number, which only the dispatcher can take for a tensor: what
    ATen does for it, by way of the ``out`` variant.
    """
    tensor = next(value for value in args if isinstance(value, torch.Tensor))
    dtype = torch.result_type(args[0], args[1])
    if op is operator("div.Tensor") and not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return op.overloadpacket.out(*args, out=torch.empty_like(tensor, dtype=dtype), **kwargs)


def plain_dtype(args: tuple[Any, ...], any_strides: bool = False) -> torch.dtype | None:
    """The dtype of all tensors in ``args``, if they are plain: floating, contiguous (or of
    ``any_strides``), not empty, on the card. Real numbers beside them, also as CPU tensors of rank
    0, do not matter to it.
    """
    dtype: torch.dtype | None = None
    has_number, has_rank_0 = False, False
    for value in flat(args):
        if not isinstance(value, torch.Tensor):
            if isinstance(value, complex):
                return None
            continue
        if value.is_cpu:
            if value.dim() or value.dtype.is_complex:
                return None
            has_number = True
            continue
        if dtype is None:
            dtype = value.dtype
        if value.dtype is not dtype or not value.numel():
            return None
        if not any_strides and not value.is_contiguous():
            return None
        has_rank_0 = has_rank_0 or value.dim() == 0
    # a number decides the dtype of a result whose tensors all have rank 0: ATen's rules apply
    if dtype not in FLOATS or (has_number and has_rank_0):
        return None
    return dtype


# --- what kernels are made of --------------------------------------------------------------------


def is_computed(*values: Any) -> bool:
    """True if all tensors among ``values`` have dtypes the vector unit takes, or are numbers."""
    return all(v.dtype in COMPUTED or _is_number(v) for v in values if isinstance(v, torch.Tensor))


def _is_number(tensor: torch.Tensor) -> bool:
    """CPU tensors of rank 0, which torch takes beside tensors of the card."""
    return tensor.is_cpu and tensor.dim() == 0 and not tensor.is_complex()


def takes_floats(*args: Any, out: torch.Tensor, **_: Any) -> bool:
    """Operands the vector unit takes and a floating result."""
    return is_computed(*args) and out.dtype in FLOATS


def operand(value: Any, dtype: torch.dtype) -> Operand:
    """A tensor as it is; a number, or a CPU tensor of rank 0, as a number in ``dtype``."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "spyre":
            return value
        if value.dim():
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"spyre:0 and {value.device}!"
            )
    return ScalarOperand(float(value), str(dtype).removeprefix("torch."))


def fill(
    name: str,
    lowering: LoweringFunction,
    operands: Sequence[Operand],
    parameters: tuple[Any, ...],
    target: torch.Tensor | NewResult,
    sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Run an operation whose one result goes to ``target``; returns it.

    ``sizes``: the target is resized to them first, where ATen leaves that to the kernel.
    """
    if isinstance(target, NewResult):
        return run(name, lowering, operands, parameters)[0]
    if current_recorder() is not None:
        return run(name, lowering, operands, parameters, target)[0]
    if sizes is not None and target.shape != sizes:
        target.resize_(sizes)
    if target.numel():
        results = run(name, lowering, operands, parameters, target)
        if results:
            target.copy_(results[0])
    return target


def fill_elementwise(
    name: str,
    lowering: LoweringFunction,
    operands: Sequence[Operand],
    parameters: tuple[Any, ...],
    target: torch.Tensor | NewResult,
) -> torch.Tensor:
    """As `fill`, of operands that are broadcast: a target without memory of its own is laid out as
    torch lays out new results of such operations.
    """
    sizes = broadcast_shape(*operands)
    if isinstance(target, torch.Tensor) and target.shape != sizes and current_recorder() is None:
        strides = elementwise_strides(*operands)
        if strides is not None and not target.untyped_storage().nbytes():
            new = torch.empty_strided(sizes, strides, dtype=target.dtype, device=target.device)
            set_storage(target, new.untyped_storage(), 0, sizes, strides)
    return fill(name, lowering, operands, parameters, target, sizes)


def new_elementwise(dtype: torch.dtype, *operands: torch.Tensor) -> torch.Tensor:
    """A tensor for the result of such an operation."""
    sizes, device = broadcast_shape(*operands), operands[0].device
    strides = elementwise_strides(*operands)
    if strides is None:
        return torch.empty(sizes, dtype=dtype, device=device)
    return torch.empty_strided(sizes, strides, dtype=dtype, device=device)


def elementwise_strides(*operands: Operand) -> tuple[int, ...] | None:
    """Strides (elements) of a new result, by torch's rule for elementwise operations; None for
    those of a contiguous one.
    """
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    if all(tensor.is_contiguous() for tensor in tensors) or not 0 < len(tensors) <= len(_LIKE):
        return None
    # numbers, also of a tracer's symbols: as sizes are to it, see `broadcast_shape`
    rows = ((tuple(map(int, t.shape)), tuple(map(int, t.stride()))) for t in tensors)
    return _strides_like(tuple(rows))


_LIKE = (torch.neg, torch.add, torch.addcmul)
"""An elementwise operation of one, two and three tensors."""


@lru_cache(4096)
def _strides_like(extents: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> tuple[int, ...]:
    """Of a result over tensors of these sizes and strides: torch computes it without elements."""
    tensors = [torch.empty_strided(*pair, device="meta") for pair in extents]
    strides: tuple[int, ...] = _LIKE[len(tensors) - 1](*tensors).stride()
    return strides


def as_like(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """``result`` with the strides that torch gives a new tensor like ``x``, which has its sizes."""
    strides = elementwise_strides(x)
    if strides is None:
        return result
    order = sorted(range(x.dim()), key=lambda dim: -strides[dim])
    dense = result.permute(order).clone(memory_format=torch.contiguous_format)
    return dense.permute([order.index(dim) for dim in range(x.dim())])


def checked_dims(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """``dims`` counted from the first, as they come; those torch refuses raise torch's errors.

    ATen checks the dims of most operations before it calls us, but not of those whose functional
    variant is ours. A tensor of rank 0 has dim 0.
    """
    extent = max(rank, 1)
    for dim in dims:
        if not -extent <= dim < extent:
            bounds = f"[{-extent}, {extent - 1}]"
            raise IndexError(
                f"Dimension out of range (expected to be in range of {bounds}, but got {dim})"
            )
    counted = tuple(dim % extent for dim in dims)
    for k, dim in enumerate(counted):
        if dim in counted[:k]:
            raise RuntimeError(f"dim {dim} appears multiple times in the list of dims")
    return counted


def checked_dim(dim: int, rank: int) -> int:
    """As `checked_dims`, of one."""
    return checked_dims((dim,), rank)[0]


def copy_into(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """``out`` with what other operations have made for it; to a recorder that is the result."""
    if current_recorder() is not None:
        return result.to(out.dtype)
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def fill_number(out: torch.Tensor, sizes: Sequence[int], number: float) -> torch.Tensor:
    """``out`` with ``sizes`` and nothing but ``number``: results over no elements."""
    if out.shape != tuple(sizes):
        out.resize_(sizes)
    return out.fill_(number)


def broadcast_shape(*operands: Operand) -> Sequence[int]:
    """The shape of a result over ``operands``.

    LoweringError when they have none; the error for users is ATen's.
    """
    shapes: set[tuple[int, ...]]
    if current_recorder() is None:
        shapes = {o.shape for o in operands if isinstance(o, torch.Tensor)}
    else:  # sizes as numbers: to a tracer that ties the graph to them
        shapes = {tuple(map(int, o.shape)) for o in operands if isinstance(o, torch.Tensor)}
    if len(shapes) == 1:
        return shapes.pop()
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        raise LoweringError(f"shapes {[tuple(shape) for shape in shapes]} together") from None
