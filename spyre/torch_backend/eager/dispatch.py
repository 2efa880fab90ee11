"""The dispatcher of eager operations: choose the kernel that takes a call's arguments.

Each operator has rows of kernels with declared `Conditions`; `call` runs the first whose conditions
hold, and the CPU where none does. Most operators are registered by their ``out`` variant only: ATen
then makes the result (or passes the tensor to change in place) by the operator's own shape and
dtype rules, and calls us to fill it.

For a functional variant ATen runs the operator's shape rules on meta tensors, makes the result
through the dispatcher and calls the ``out`` variant, which costs as much as the launch. Over plain
operands the result is the one the program would make anyway, in their dtype; `call_functional` runs
these directly and leaves all others to ATen.

Kernels of the card replace ATen's own rules for arguments. These are within the CPU's kernels as
much as in functions of shapes, and those of shapes that torch has in Python import Dynamo first. So
the CPU is asked: the operator runs there over zeros, once for all calls with tensors of the same
sizes, strides and dtypes and the same other arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from spyre.dtypes import HOST_DTYPES
from spyre.interrupts import interrupts
from spyre.lru_cache import LruCache
from spyre.torch_backend.compat import COMPOSITE_KEYS, composed, operator, schema_of
from spyre.torch_backend.device import DTYPES, different_devices
from spyre.torch_backend.eager.compile import Operand, ScalarOperand
from spyre.torch_backend.eager.launch import (
    flat,
    is_plain_call,
    keep_record,
    known_call,
    launch_records,
    placement_of,
    record_other_work,
    recording_launches,
    repeated,
    run,
)
from spyre.torch_backend.eager.overlap import stand_ins
from spyre.torch_backend.fallback import cpu_fallback, decided_by_cpu, tensors_in, wrap_numbers
from spyre.torch_backend.program import LoweringError, LoweringFunction, current_recorder
from spyre.torch_backend.tensors import set_storage

# --- rules for arguments -------------------------------------------------------------------------

SAYS_NOTHING = ("not implemented for", "ZeroDivisionError")
"""Parts of torch's messages for a dtype that an operation of the CPU lacks, not one it refuses, and
for integers divided by the zeros.
"""

MAX_FLOAT = 127.0
"""Up to here every dtype has the number, and which one it is decides nothing."""


def call_signature(
    function: object, args: Sequence[Any], kwargs: Mapping[str, Any], numbers_decide: bool
) -> Any:
    """Return the key of a call for the checks and the choice of a kernel.

    It has all arguments, and of tensors all but the elements, except those of a CPU tensor of rank
    0, which is a number; floats up to `MAX_FLOAT` only if ``numbers_decide``.
    """
    parts: list[object] = [function, torch.get_default_dtype(), *kwargs]
    for value in flat((*args, *kwargs.values())):
        if isinstance(value, torch.Tensor):
            parts += (value.dtype, value.shape, value.stride(), value.device)
            if value.is_cpu and not value.dim():
                parts.append(value.item())
        elif type(value) is float and -MAX_FLOAT <= value <= MAX_FLOAT and not numbers_decide:
            parts.append(float)
        else:
            parts += (type(value), value)
    return tuple(parts)


def refuses(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True if the CPU refuses arguments of these sizes, strides and dtypes, or zeros."""
    host_args, host_kwargs = stand_ins((list(args), dict(kwargs)))
    wrap_numbers(op, host_args)
    masks = (torch.bool, torch.uint8)
    if op is operator("_index_put_impl_") and any(
        t.dtype in masks for t in tensors_in(host_args[1])
    ):
        # how many values it takes depends on the mask; they are compared with its positions later
        host_args[2] = host_args[2].new_zeros(())
    try:
        with torch.no_grad():
            op(*host_args, **host_kwargs)
    except Exception as error:  # torch has no type for these
        return not any(part in str(error) for part in SAYS_NOTHING)
    return False


FLOATS = tuple(DTYPES[row.name] for row in HOST_DTYPES.values() if row.computed_as_float)
INTEGERS = (torch.int32, torch.int64)
COMPUTED = (*FLOATS, torch.bool)
"""dtypes that the vector unit computes in; bool as 1.0 and 0.0."""
CONVERTED = (*COMPUTED, *INTEGERS)
"""dtypes that the card converts into each other."""
BOOL = (torch.bool,)
POSITIONS = (torch.int64,)
"""dtypes of results that are positions."""
NUMBER = "number"
"""Among dtypes: any CPU tensor of rank 0 that is not complex, which torch takes for a number."""
OPERANDS = (*COMPUTED, NUMBER)


# --- conditions ----------------------------------------------------------------------------------

Names = tuple[str, ...]
Arguments = SimpleNamespace
"""A call's arguments by their names in the operator's schema, and the tensors among them as
``inputs`` (positional) and ``results`` (written by keyword, as ``out``).
"""

Signature = tuple[Names, Names, Mapping[str, Any]]
"""Arguments of an operator's schema: names of positional and of written keyword arguments, and the
defaults of all (None for those without).
"""


@cache
def signature_of(name: str) -> Signature:
    """The signature of an aten operator."""
    arguments = schema_of(operator(name)).arguments
    return (
        tuple(a.name for a in arguments if not a.kwarg_only),
        tuple(a.name for a in arguments if a.kwarg_only and a.is_write),
        {a.name: a.default_value for a in arguments},
    )


def bind(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """A call's arguments, by the names of the signature."""
    positional, written, defaults = signature
    values = {**defaults, **dict(zip(positional, args, strict=False)), **kwargs}
    inputs = [v for name in positional if isinstance(v := values[name], torch.Tensor)]
    return Arguments(**values, inputs=inputs, results=[values[name] for name in written])


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on the `Arguments` of a call; a kernel takes the call where all of them hold.

    Names are those of `Arguments`; conditions on tensors hold for names that the operator does not
    have and for values that are no tensors.
    ``dtypes``: allowed dtypes, by name. ``same_dtype``, ``same_device``: tensors that must agree.
    ``nonempty``, ``empty``: tensors with and without elements. ``ranks``, ``values``: allowed ranks
    and values, by name. ``promotes_to``: dtypes that torch may promote ``self`` and ``other`` to.
    ``check``: is asked last.
    """

    dtypes: Mapping[str, Collection[object]] = msgspec.field(default_factory=dict)
    same_dtype: Names = ()
    same_device: Names = ()
    nonempty: Names = ()
    empty: Names = ()
    ranks: Mapping[str, Collection[int]] = msgspec.field(default_factory=dict)
    values: Mapping[str, Collection[Any]] = msgspec.field(default_factory=dict)
    promotes_to: Collection[object] = ()
    check: Callable[[Arguments], Any] | None = None

    def hold(self, args: Arguments) -> bool:
        return (
            all(_has_dtype(t, d) for name, d in self.dtypes.items() for t in _tensors(args, name))
            and len({t.dtype for t in _tensors(args, *self.same_dtype)}) < 2
            and len({t.device for t in _tensors(args, *self.same_device)}) < 2
            and all(t.numel() for t in _tensors(args, *self.nonempty))
            and not any(t.numel() for t in _tensors(args, *self.empty))
            and all(t.dim() in n for name, n in self.ranks.items() for t in _tensors(args, name))
            and all(getattr(args, name) in allowed for name, allowed in self.values.items())
            and not (
                self.promotes_to
                and torch.result_type(args.self, args.other) not in self.promotes_to
            )
            and (self.check is None or bool(self.check(args)))
        )


def _tensors(args: Arguments, *names: str) -> list[Any]:
    """Tensors among the arguments of these names, also those in lists of tensors."""
    values = (getattr(args, name, None) for name in names)
    lists = (v if isinstance(v, (list, tuple)) else (v,) for v in values)
    return [v for each in lists for v in each if isinstance(v, (torch.Tensor, NewResult))]


def _has_dtype(tensor: Any, dtypes: Collection[object]) -> bool:
    if tensor.dtype in dtypes:
        return True
    return NUMBER in dtypes and tensor.is_cpu and not (tensor.dim() or tensor.is_complex())


ARITHMETIC = Conditions(dtypes={"inputs": OPERANDS, "results": FLOATS})
"""Operands of the vector unit, and floating results."""
PROMOTION = Conditions(dtypes={"inputs": (*OPERANDS, *INTEGERS), "results": FLOATS})
"""Integers too, which the program converts."""
REDUCTION = Conditions(dtypes={"self": OPERANDS, "results": FLOATS}, nonempty=("self",))


# --- operations ----------------------------------------------------------------------------------


Kernel = Callable[[Arguments], Any]
"""Computes an operator. Where no program can be written it raises LoweringError and has changed
nothing.
"""
Row = tuple[str, Kernel, Conditions | None]
"""Of a table: an aten operator, a kernel, and the conditions on which it takes a call. Of several
rows of an operator the first whose conditions hold is run.
"""


def row(kernel: Kernel, name: str = "", **conditions: Any) -> Row:
    """Return a row of the operator ``name``, by default that of the kernel's name."""
    return name or kernel.__name__, kernel, Conditions(**conditions) if conditions else None


class EagerOperation(msgspec.Struct, frozen=True, eq=False):
    """An aten operator with its kernels, in the order they are tried.

    ``overload``: the operator to run on the CPU; None if the CPU has no kernel either.
    ``overlaps``: returns True if the call writes to overlapping memory in a way that only the CPU
    defines; raises torch's errors. ``is_one_launch``: its kernels do nothing but fill ``out``, of
    operations ``is_in_place`` the first argument.
    ``is_checked``: whether the CPU would take the arguments is found out first. ``numbers_decide``:
    which kernel takes a call depends on the values of its floats.
    """

    name: str
    overload: Any
    kernels: Sequence[tuple[Kernel, Conditions | None]]
    signature: Signature
    overlaps: Callable[[Sequence[Any], Mapping[str, Any]], bool] | None = None
    is_one_launch: bool = False
    is_in_place: bool = False
    is_checked: bool = False
    numbers_decide: bool = False

    def kernel_for(
        self, op: Any, arguments: Arguments, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Kernel | None:
        """The first kernel that takes the arguments, those of ``op``; they are checked if the
        kernels do not, and none of these sizes and dtypes were. What the CPU refuses is left to it,
        for its error.
        """
        if op is None or current_recorder() is not None:
            return self._first_kernel(arguments)
        key = call_signature(op, args, kwargs, self.numbers_decide)
        if (chosen := _chosen.get(key)) is None:
            if self.is_checked and refuses(op, args, kwargs):
                record_other_work()
                return lambda _: decided_by_cpu(op, *args, **kwargs)
            chosen = (self._first_kernel(arguments),)
            _chosen.put(key, chosen)
        return chosen[0]

    def _first_kernel(self, arguments: Arguments) -> Kernel | None:
        for kernel, conditions in self.kernels:
            if conditions is None or conditions.hold(arguments):
                return kernel
        return None


MAX_CHOSEN = 8192
_chosen: LruCache[Any, tuple[Kernel | None]] = LruCache(MAX_CHOSEN)
"""Kernels of calls whose arguments were checked, by `call_signature`."""


class FunctionalVariant(msgspec.Struct, frozen=True, eq=False):
    """A functional variant that makes its result by a kernel of the ``out`` variant, ``operation``.

    ``tensors``: number of tensor arguments. ``any_strides``: the result is contiguous whatever the
    strides of the arguments.
    """

    overload: Any
    operation: EagerOperation
    tensors: int
    any_strides: bool = False


class NewResult(msgspec.Struct, frozen=True):
    """Passed as ``out`` if the kernel is to make its result; it may raise LoweringError."""

    dtype: torch.dtype


def call(operation: EagerOperation, *args: Any, **kwargs: Any) -> Any:
    """Run an operation by the first kernel that takes the arguments, else on the CPU.

    It also runs on the CPU if no program can be written for the arguments.
    """
    is_filled = kwargs.keys() == {"out"} or (operation.is_in_place and not kwargs)
    if not is_filled or not operation.is_one_launch or current_recorder() is not None:
        return _call(operation, *args, **kwargs)
    out = args[0] if operation.is_in_place else kwargs["out"]
    known = known_call(operation, args, out)
    if known is None:
        return _call(operation, *args, **kwargs)
    key, buffers, _, target = known
    record = launch_records.get(key)
    if record is not None:
        try:
            record.launch(buffers, target)
        except Exception as error:
            error.add_note(f"in aten::{operation.name} on spyre")
            raise
        return out
    placement = placement_of(out)
    with recording_launches() as launches:
        result = _call(operation, *args, **kwargs)
    # a result that the call resized has other extents at the next call
    if placement_of(out) == placement:
        keep_record(known, out, launches)
    return result


def call_composite(name: str, *args: Any) -> Any:
    """Run torch's composition of an operation with one result; calls that are views around one
    launch are that launch when they are repeated.
    """
    if not is_plain_call(args):
        return composed(name, *args)
    with interrupts:
        return repeated(name, args, lambda: (composed(name, *args),))[0]


def one_launch(name: str, positional: Names, run: Kernel) -> EagerOperation:
    """An operation for `call`, a step of other kernels, that fills one ``out`` by a launch."""
    signature: Signature = (positional, ("out",), {})
    return EagerOperation(name, None, [(run, None)], signature, is_one_launch=True)


def _call(operation: EagerOperation, *args: Any, **kwargs: Any) -> Any:
    if operation.overlaps is not None and operation.overlaps(args, kwargs):
        return _on_cpu(operation, *args, **kwargs)
    try:
        arguments = bind(operation.signature, args, kwargs)
        kernel = operation.kernel_for(operation.overload, arguments, args, kwargs)
        if kernel is not None:
            return kernel(arguments)
    except LoweringError:
        if current_recorder() is not None or operation.overload is None:
            raise
    except Exception as error:
        error.add_note(f"in aten::{operation.name} on spyre")
        raise
    else:
        if current_recorder() is not None:
            raise LoweringError(f"{operation.name} of operands the cores do not take")
    return _on_cpu(operation, *args, **kwargs)


def _on_cpu(operation: EagerOperation, *args: Any, **kwargs: Any) -> Any:
    record_other_work()
    return cpu_fallback(operation.overload, *args, **kwargs)


def call_functional(variant: FunctionalVariant, *args: Any, **kwargs: Any) -> Any:
    """Run a functional variant over plain operands; else as ATen does."""
    known = None if kwargs or current_recorder() is not None else known_call(variant, args)
    try:
        if known is not None and (record := launch_records.get(known[0])) is not None:
            return record.launch(known[1])[0]
        with recording_launches() as launches:
            result = _launched(variant, args, kwargs)
    except LoweringError:
        result = None  # perhaps with another layout of the result
    except Exception as error:
        error.add_note(f"in {variant.overload} on spyre")
        raise
    if result is None:
        with recording_launches() as launches:
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
    if dtype is None:
        return None
    out = NewResult(dtype)
    arguments = bind(variant.operation.signature, args, {**kwargs, "out": out})
    if getattr(arguments, "dtype", None) or getattr(arguments, "half_to_float", False):
        return None  # a result in another dtype than the operands'
    kernel = variant.operation.kernel_for(variant.overload, arguments, args, kwargs)
    return None if kernel is None else kernel(arguments)


def _call_with_number(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the ``out`` variant of an operator with a number in place of a tensor, as ATen does.

    The functional variant could not be called again: only ATen's dispatcher wraps numbers.
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


def operand(value: Any, dtype: torch.dtype) -> Operand:
    """A tensor on the card; a number or a CPU tensor of rank 0 as a number in ``dtype``."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "spyre":
            return value
        if value.dim():
            raise different_devices("spyre:0", value.device)
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
    """As `fill`, of operands that are broadcast; a target that has no memory yet gets the strides
    of a new result of torch's elementwise operations.
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


def counted_dims(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """``dims`` counted from the first, as they come. A tensor of rank 0 has dim 0."""
    return tuple(dim % max(rank, 1) for dim in dims)


def copy_into(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Copy a result of other operations to ``out``; under a recorder, return it in out's dtype."""
    if current_recorder() is not None:
        return result.to(out.dtype)
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def fill_number(out: torch.Tensor, sizes: Sequence[int], number: float) -> torch.Tensor:
    """Resize ``out`` and fill it with the result of a reduction of no elements."""
    if out.shape != tuple(sizes):
        out.resize_(sizes)
    return out.fill_(number)


def broadcast_shape(*operands: Operand) -> Sequence[int]:
    """The shape of a result over ``operands``, which go together."""
    shapes: set[tuple[int, ...]]
    if current_recorder() is None:
        shapes = {o.shape for o in operands if isinstance(o, torch.Tensor)}
    else:  # sizes as numbers: to a tracer that ties the graph to them
        shapes = {tuple(map(int, o.shape)) for o in operands if isinstance(o, torch.Tensor)}
    if len(shapes) == 1:
        return shapes.pop()
    return tuple(torch.broadcast_shapes(*shapes))
