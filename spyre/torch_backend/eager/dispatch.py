"""From aten's calling conventions to `run`: numbers, dtypes, empty tensors, targets, fallbacks.

Most operations are registered as their ``out`` variant only: ATen then makes the result (or takes
the tensor to change in place) by the operation's own rules for sizes and dtypes, and calls us to
fill it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spyre.torch_backend.eager.compile import LoweringFunction
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.operands import Operand, ScalarOperand
from spyre.torch_backend.fallback.cpu_fallback import cpu_fallback
from spyre.torch_backend.program.op_spec import LoweringError
from spyre.torch_backend.program.recording import current_recorder

Kernel = Callable[..., Any]

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
COMPUTED = (*FLOATS, torch.bool)
"""dtypes the operations of the vector unit take, bool as 1.0 and 0.0."""


@dataclass(frozen=True, slots=True)
class NewResult:
    """Given in place of ``out``: the kernel is to make its result, in ``dtype``.

    What it has no program for it refuses with NotExpressible.
    """

    dtype: torch.dtype


def made(target: torch.Tensor | NewResult, like: torch.Tensor) -> torch.Tensor:
    """The target; a new tensor of the size of ``like`` where there is none yet."""
    if isinstance(target, NewResult):
        return torch.empty_like(like, dtype=target.dtype)
    return target


def operand(value: Any, dtype: torch.dtype) -> Operand:
    """A tensor as it is; a number, or a CPU tensor of rank 0, as a number in ``dtype``."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "spyre":
            return value
        if value.dim() == 0:
            return ScalarOperand(float(value), str(dtype).removeprefix("torch."))
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"spyre:0 and {value.device}!"
        )
    return ScalarOperand(float(value), str(dtype).removeprefix("torch."))


def is_computed(*values: Any) -> bool:
    """True if all tensors among ``values`` have dtypes the vector unit takes."""
    return all(v.dtype in COMPUTED for v in values if isinstance(v, torch.Tensor))


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


def overload(name: str) -> Any:
    """The operator overload of an aten name, such as ``add.out``."""
    packet, _, rest = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), rest or "default")


def falling_back(name: str, kernel: Kernel, takes: Callable[..., bool]) -> Kernel:
    """``kernel`` where ``takes(*args, **kwargs)`` says so, else the CPU.

    The CPU also does what no program can be written for; trying has changed nothing.
    """
    op = overload(name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if takes(*args, **kwargs):
            try:
                return kernel(*args, **kwargs)
            except LoweringError:
                if _is_to_make(kwargs):
                    raise
        elif _is_to_make(kwargs):
            raise LoweringError(f"{name} of operands the cores do not take")
        return cpu_fallback(op, *args, **kwargs)

    return call


def _is_to_make(named: dict[str, Any]) -> bool:
    """Whether the caller knows what to do where there is no program."""
    return isinstance(named.get("out"), NewResult) or current_recorder() is not None


def _shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Sizes as numbers; to a tracer that ties the graph to them."""
    if current_recorder() is None:
        return tuple(tensor.shape)
    return tuple(map(int, tensor.shape))


def broadcast_shape(*operands: Operand) -> Sequence[int]:
    """The shape of a result over ``operands``.

    NotExpressible when they have none; the error for users is ATen's.
    """
    shapes = {_shape_of(o) for o in operands if isinstance(o, torch.Tensor)}
    if len(shapes) == 1:
        (shape,) = shapes
        return tuple(shape)
    try:
        found: Sequence[int] = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise LoweringError(f"shapes {[tuple(shape) for shape in shapes]} together") from None
    return found


CONVERTED = (*COMPUTED, torch.int32, torch.int64)
