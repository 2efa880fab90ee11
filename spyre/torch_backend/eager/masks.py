"""Boolean logic, predicates and masks: logical_*, bitwise_* of bools, isnan, sign, where, tril."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch

from spyre.lru_cache import LruCache
from spyre.torch_backend.device import name_of, warn_user
from spyre.torch_backend.eager.compile import ScalarOperand
from spyre.torch_backend.eager.dispatch import (
    BOOL,
    CONVERTED,
    FLOATS,
    INTEGERS,
    Arguments,
    Conditions,
    fill,
    new_elementwise,
    operand,
)
from spyre.torch_backend.eager.elementwise import binary, compared, unary
from spyre.torch_backend.eager.factories import expanded_dims, kept_on_card, without_expanded_dims
from spyre.torch_backend.eager.integers import is_integer, select, sign
from spyre.torch_backend.program import (
    Lowering,
    LoweringError,
    LoweringFunction,
    Value,
    current_recorder,
)


def negated(builder: Lowering, x: Value, _: str = "") -> Value:
    """Whether elements are zero."""
    x = builder.convert(x, "float32") if x.dtype in ("int32", "int64") else x
    return builder.truth(builder.pointwise("equal", x, 0.0))


def _equal_to(number: float, builder: Lowering, x: Value, _: str) -> Value:
    return builder.truth(builder.pointwise("equal", x, number))


# --- kernels -------------------------------------------------------------------------------------


def isnan(args: Arguments) -> torch.Tensor:
    """aten::isnan. The card's 16-bit format has no NaN and stores it as an infinity."""
    out = torch.empty_like(args.self, dtype=torch.bool)
    return fill(
        "isnan", lambda low, x: low.truth(low.pointwise("notequal", x, x)), [args.self], (), out
    )


_AND = partial(compared, "minimum")  # of 1.0 and 0.0
_OPERATIONS: dict[str, LoweringFunction] = {
    "and": _AND,
    "or": partial(compared, "maximum"),
    "xor": partial(compared, "notequal"),
}


def _has_no_numbers(args: Arguments) -> bool:
    """Python's numbers among the operands are bools."""
    return all(isinstance(v, (bool, torch.Tensor)) for v in (args.self, args.other))


_BOOLS = Conditions(dtypes={"inputs": BOOL, "out": BOOL}, check=_has_no_numbers)
_TRUTHS = Conditions(dtypes={"inputs": CONVERTED, "out": BOOL}, check=_has_no_numbers)
_PREDICATE = Conditions(dtypes={"self": FLOATS, "out": BOOL})
_SIGN = Conditions(dtypes={"self": (*FLOATS, *INTEGERS)}, same_dtype=("self", "out"))
_UNARY: tuple[tuple[str, LoweringFunction, Conditions], ...] = (
    ("logical_not.out", negated, Conditions(dtypes={"self": CONVERTED, "out": BOOL})),
    ("bitwise_not.out", negated, Conditions(dtypes={"self": BOOL, "out": BOOL})),
    ("isposinf.out", partial(_equal_to, float("inf")), _PREDICATE),
    ("isneginf.out", partial(_equal_to, float("-inf")), _PREDICATE),
    ("sign.out", sign, _SIGN),
    ("sgn.out", sign, _SIGN),
)

MAX_TRIANGLES = 32
"""Triangles that stay on the card."""
MAX_TRIANGLE_ELEMENTS = 1 << 20
"""Larger ones do not."""
_triangles: LruCache[tuple[object, ...], torch.Tensor] = LruCache(MAX_TRIANGLES)


def fill_where(builder: Lowering, x: Value, mask: Value, number: Value, dtype: str) -> Value:
    """x, with ``number`` where the mask holds."""
    return select(builder, mask, number, x, dtype)


def keep_where(builder: Lowering, x: Value, mask: Value, dtype: str) -> Value:
    """x, with 0 where the mask does not hold."""
    return select(builder, mask, x, builder.constant(0, dtype), dtype)


def where(args: Arguments) -> torch.Tensor:
    """aten::where.self and where.self_out."""
    condition, a, b = args.condition, args.self, args.other
    (out,) = args.results or [new_elementwise(torch.result_type(a, b), condition, a, b)]
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


def masked_fill_(args: Arguments) -> torch.Tensor:
    """aten::masked_fill_. An element of an expanded tensor is filled if it is masked anywhere."""
    x: torch.Tensor = args.self
    if repeated := expanded_dims(x):
        warn_user(
            "Use of masked_fill_ on expanded tensors is deprecated. "
            "Please clone() the tensor before performing this operation."
        )
        mask = args.mask.expand(x.shape).any(repeated, keepdim=True)
        without_expanded_dims(x).masked_fill_(mask, args.value)
        return x
    return _masked_fill(args, x)


def masked_fill(args: Arguments) -> torch.Tensor:
    x = args.self
    return _masked_fill(args, x.new_empty(torch.broadcast_shapes(x.shape, args.mask.shape)))


def _masked_fill(args: Arguments, out: torch.Tensor) -> torch.Tensor:
    dtype = args.self.dtype
    operands = [args.self, args.mask, as_fill_operand(args.value, dtype)]
    return fill("masked_fill", fill_where, operands, (name_of(dtype),), out)


def as_fill_operand(value: Any, dtype: torch.dtype) -> torch.Tensor | ScalarOperand:
    """A tensor on the card, or a number rounded to ``dtype``, as elements of a tensor are."""
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
    diagonal = max(min(diagonal, columns), -rows)

    def make() -> torch.Tensor:
        ones = torch.ones(rows, columns, dtype=torch.bool, device="cpu")
        return ones.tril(diagonal) if lower else ones.triu(diagonal)

    key = (rows, columns, diagonal, lower)
    return kept_on_card(_triangles, key, device, make, MAX_TRIANGLE_ELEMENTS)


def masked_scatter(args: Arguments) -> torch.Tensor:
    """aten::masked_scatter: the k-th true place of the mask takes the k-th element of the source.

    A mask that repeats itself along the last dims, as that of tokens does, chooses rows of these.
    """
    x, mask = torch.broadcast_tensors(args.self, args.mask)
    kept = x.dim()
    while kept and (x.shape[kept - 1] == 1 or not mask.stride(kept - 1)):
        kept -= 1
    width = prod(x.shape[kept:])
    rows = mask[(..., *[0] * (x.dim() - kept))].reshape(-1, x.shape[kept - 1] if kept else 1)
    within = rows.float().cumsum(1)
    before = within[:, -1].cumsum(0) - within[:, -1]
    places = (within + before.unsqueeze(1) - 1.0).clamp_min(0.0).int().reshape(-1)
    table = args.source.reshape(-1)
    if len(table) < width:
        raise LoweringError("a source of less than a row")
    table = table[: len(table) // width * width].reshape(-1, width)
    return torch.where(mask, table.index_select(0, places).reshape(x.shape), x).contiguous()


def _triangular(lower: bool, args: Arguments) -> torch.Tensor:
    x: torch.Tensor = args.self
    if not x.numel():
        return args.out.resize_(x.shape)
    rows, columns = x.shape[-2:]
    operands = [x, triangle(rows, columns, args.diagonal, lower, x.device)]
    return fill("triangle", keep_where, operands, (name_of(x.dtype),), args.out, x.shape)


FILLS = ("masked_fill_.Scalar", "masked_fill_.Tensor")


def _has_operands(args: Arguments) -> bool:
    """The condition is on the card, and `_is_operand` holds for both values."""
    dtype = torch.result_type(args.self, args.other)
    is_on_card = args.condition.device.type == "spyre"
    return is_on_card and all(_is_operand(v, dtype) for v in (args.self, args.other))


def _has_fill_number(args: Arguments) -> bool:
    if isinstance(args.value, torch.Tensor):
        return args.value.dim() == 0 and _is_operand(args.value, args.self.dtype)
    return is_number_of(args.value, args.self.dtype)


_WHERE = Conditions(dtypes={"condition": BOOL}, promotes_to=CONVERTED, check=_has_operands)
_FILL = Conditions(
    dtypes={"self": CONVERTED, "mask": BOOL}, same_device=("self", "mask"), check=_has_fill_number
)
_SCATTER = Conditions(
    dtypes={"self": CONVERTED, "mask": BOOL},
    same_dtype=("self", "source"),
    same_device=("inputs",),
    nonempty=("inputs",),
    check=lambda args: args.self.numel() < 1 << 24,
)
_TRIANGLE = Conditions(dtypes={"self": CONVERTED}, same_dtype=("self", "out"))

KERNELS = (
    *(
        (name, partial(binary, name, lowering), conditions)
        for kind, lowering in _OPERATIONS.items()
        for name, conditions in (
            (f"logical_{kind}.out", _TRUTHS),
            (f"bitwise_{kind}.Tensor_out", _BOOLS),
        )
    ),
    *((name, partial(unary, name, f, ()), conditions) for name, f, conditions in _UNARY),
    ("isnan", isnan, Conditions(dtypes={"self": FLOATS})),
    # a product of bools is their conjunction
    ("mul.out", partial(binary, "logical_and.out", _AND), _BOOLS),
    ("where.self", where, _WHERE),
    ("where.self_out", where, _WHERE),
    ("tril.out", partial(_triangular, True), _TRIANGLE),
    ("triu.out", partial(_triangular, False), _TRIANGLE),
    ("masked_scatter", masked_scatter, _SCATTER),
    ("masked_scatter_", lambda args: args.self.copy_(masked_scatter(args)), _SCATTER),
    ("masked_fill.Scalar", masked_fill, _FILL),
    ("masked_fill.Tensor", masked_fill, _FILL),
    ("masked_fill_.Scalar", masked_fill_, _FILL),
    ("masked_fill_.Tensor", masked_fill_, _FILL),
)
