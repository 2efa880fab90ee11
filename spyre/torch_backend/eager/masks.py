"""Elements chosen by a mask: where, masked_fill, tril and triu."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from spyre.lru_cache import LruCache
from spyre.torch_backend.device import card_of, name_of, warn_user
from spyre.torch_backend.eager.compile import ScalarOperand
from spyre.torch_backend.eager.dispatch import (
    BOOL,
    CONVERTED,
    INTEGERS,
    Arguments,
    Conditions,
    EagerKernel,
    broadcast_shape,
    fill,
    new_elementwise,
    operand,
)
from spyre.torch_backend.eager.factories import each_once, expanded_dims
from spyre.torch_backend.eager.integers import chosen, is_integer
from spyre.torch_backend.program import Lowering, Value, current_recorder
from spyre.torch_backend.tensors import buffer_of

MAX_TRIANGLES = 32
"""Triangles that stay on the card."""
MAX_TRIANGLE_ELEMENTS = 1 << 20
"""Larger ones do not."""
_triangles: LruCache[tuple[object, ...], torch.Tensor] = LruCache(MAX_TRIANGLES)


def select(low: Lowering, condition: Value, a: Value, b: Value, dtype: str) -> Value:
    """a where the condition holds, else b."""
    a, b = low.convert(a, dtype), low.convert(b, dtype)
    if dtype in ("int32", "int64"):
        return chosen(low, condition, a, b)
    return low.pointwise("where3", low.convert(condition, _same_format(dtype)), a, b, dtype=dtype)


def _same_format(dtype: str) -> str:
    return "float32" if dtype == "float32" else "bool"


def fill_where(low: Lowering, x: Value, mask: Value, number: Value, dtype: str) -> Value:
    """x, with ``number`` where the mask holds."""
    return select(low, mask, number, x, dtype)


def keep_where(low: Lowering, x: Value, mask: Value, dtype: str) -> Value:
    """x, with 0 where the mask does not hold."""
    return select(low, mask, x, low.constant(0, dtype), dtype)


# --- kernels -------------------------------------------------------------------------------------


def where(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """aten::where.self."""
    dtype = torch.result_type(a, b)
    return where_out(condition, a, b, out=new_elementwise(dtype, condition, a, b))


def where_out(
    condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    """aten::where.self_out."""
    sizes = torch.broadcast_shapes(condition.shape, a.shape, b.shape)
    operands = [condition, operand(a, out.dtype), operand(b, out.dtype)]
    return fill("where", select, operands, (name_of(out.dtype),), out, sizes)


def _is_operand(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """Tensors on the card, or numbers from the CPU that the card can hold as ``dtype``."""
    if value.device.type == "spyre":
        return value.dtype in CONVERTED
    return value.dim() == 0 and is_number_of(value.item(), dtype)


def is_number_of(value: Any, dtype: torch.dtype) -> bool:
    """True if the card has the number in ``dtype``."""
    return is_integer(int(value)) if dtype in INTEGERS else not isinstance(value, complex)


def masked_fill_(x: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    """aten::masked_fill_, Scalar and Tensor. Memory that an expanded tensor shows several times is
    filled where one of its places is masked.
    """
    sizes = broadcast_shape(x, mask)
    if sizes != x.shape:
        raise RuntimeError(
            f"output with shape {list(x.shape)} doesn't match the broadcast shape {list(sizes)}"
        )
    repeated = expanded_dims(x)
    if repeated:
        warn_user(
            "Use of masked_fill_ on expanded tensors is deprecated. "
            "Please clone() the tensor before performing this operation."
        )
        masked_fill_(each_once(x), mask.expand(x.shape).any(repeated, keepdim=True), value)
        return x
    number = filling(value, x.dtype)
    return fill("masked_fill", fill_where, [x, mask, number], (name_of(x.dtype),), x)


def masked_fill(x: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    """aten::masked_fill, Scalar and Tensor."""
    result = x.new_empty(torch.broadcast_shapes(x.shape, mask.shape))
    number = filling(value, x.dtype)
    return fill("masked_fill", fill_where, [x, mask, number], (name_of(x.dtype),), result)


def filling(value: Any, dtype: torch.dtype) -> torch.Tensor | ScalarOperand:
    """A tensor on the card as it is, a number rounded to ``dtype`` first, as a filled tensor is."""
    if isinstance(value, torch.Tensor) and value.device.type == "spyre":
        return value
    number = value.item() if isinstance(value, torch.Tensor) else value
    number = torch.tensor(number, dtype=dtype, device="cpu")
    return ScalarOperand(float(number.item()), name_of(dtype))


def triangle(
    rows: int, columns: int, diagonal: int, lower: bool, device: torch.device
) -> torch.Tensor:
    """The mask of a triangle, as bool, kept on its card for the next one of this shape.

    Any thread; at worst two make the same one.
    """
    if current_recorder() is not None:
        node: torch.Tensor = torch.ops.spyre.triangle(rows, columns, diagonal, lower, device)
        return node
    card = card_of(device)
    diagonal = max(min(diagonal, columns), -rows)
    key = (card.index, card.device.resets, rows, columns, diagonal, lower)
    mask = _triangles.get(key)
    if mask is None:
        ones = torch.ones(rows, columns, dtype=torch.bool, device="cpu")
        mask = (ones.tril(diagonal) if lower else ones.triu(diagonal)).to(device)
        if rows * columns <= MAX_TRIANGLE_ELEMENTS:
            buffer_of(mask).leave_uncounted()
            _triangles.put(key, mask)
    return mask


def _triangular(lower: bool, x: torch.Tensor, diagonal: int = 0, *, out: torch.Tensor) -> Any:
    """aten::tril.out and triu.out."""
    if not x.numel():
        return out.resize_(x.shape)
    rows, columns = x.shape[-2:]
    operands = [x, triangle(rows, columns, diagonal, lower, x.device)]
    return fill("triangle", keep_where, operands, (name_of(x.dtype),), out, x.shape)


FILLS = ("masked_fill_.Scalar", "masked_fill_.Tensor")


def _has_operands(call: Arguments) -> bool:
    """The condition is on the card, and both others are what `_is_operand` says."""
    dtype = torch.result_type(call.self, call.other)
    is_on_card = call.condition.device.type == "spyre"
    return is_on_card and all(_is_operand(v, dtype) for v in (call.self, call.other))


def _has_fill_number(call: Arguments) -> bool:
    if isinstance(call.value, torch.Tensor):
        return call.value.dim() == 0 and _is_operand(call.value, call.self.dtype)
    return is_number_of(call.value, call.self.dtype)


_WHERE = Conditions(dtypes={"condition": BOOL}, promotes_to=CONVERTED, check=_has_operands)
_FILL = Conditions(
    dtypes={"self": CONVERTED, "mask": BOOL},
    same_device=("self", "mask"),
    check=_has_fill_number,
)
_TRIANGLE = Conditions(dtypes={"self": CONVERTED}, same_dtype=("self", "out"))

KERNELS = (
    EagerKernel("where.self", where, _WHERE),
    EagerKernel("where.self_out", where_out, _WHERE),
    EagerKernel("tril.out", partial(_triangular, True), _TRIANGLE),
    EagerKernel("triu.out", partial(_triangular, False), _TRIANGLE),
    EagerKernel("masked_fill.Scalar", masked_fill, _FILL),
    EagerKernel("masked_fill.Tensor", masked_fill, _FILL),
    EagerKernel("masked_fill_.Scalar", masked_fill_, _FILL),
    EagerKernel("masked_fill_.Tensor", masked_fill_, _FILL),
)
