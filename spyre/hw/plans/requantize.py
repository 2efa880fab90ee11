"""Planner of quantising, packed conversions and int32 arithmetic: elementwise over any sticks.

The output's dims are divided into inner (its first stick dim), middle (further stick dims of any
operand) and outer ones; inputs may lack dims. Sticks of packed outputs: operations reference §5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.plans.context import (
    Mask,
    PlanContext,
    RowWriter,
    check_covered,
    find_mask,
    float_word,
)
from spyre.hw.plans.matmul import check_stick
from spyre.hw.plans.offset_tables import OffsetSpace, attach, combine, element_bits, spaces
from spyre.hw.spec import STICK_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import OVERFLOW_CONSTANT

_FORMATS = {
    "quantize8": ("SEN169_FP16", "SENINT8"),
    "quantize4": ("SEN169_FP16", "SENINT4"),
    "to_fp8": ("SEN169_FP16", "SEN143_FP8"),
    "value": ("SEN143_FP8", "SEN169_FP16"),
    "add": ("IEEE_INT32", "IEEE_INT32"),
    "mul": ("IEEE_INT32", "IEEE_INT32"),
    "truncate": ("IEEE_FP32", "IEEE_INT32"),
    "from_int": ("IEEE_INT32", "IEEE_FP32"),
}
"""(inputs, output) by the op table's kernel name."""

_SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "qfp8ch": ((0, 128),),
    "csqint8ch": ((0, 128),),
    "qfp8mb": ((0, 8), (1, 2), (0, 8)),
    "csqint8mb": ((0, 8), (1, 2), (0, 8)),
    "qfp8wt": ((1, 2), (0, 64)),
    "csqint8wt": ((1, 2), (0, 64)),
    "csqint4": ((0, 16), (1, 2), (0, 8)),
    "csqint4wt": ((1, 4), (0, 64)),
}
"""Stick of the output, innermost first: (0 for the input's stick dim, 1 for another; elements)."""


def plan_requantize(context: PlanContext) -> Iterator[Int64Array]:
    """Tables of an operation of this family."""
    for access in context.inputs:
        check_covered(context, access, context.output)
    _check_formats(context)
    _check_sticks(context)
    mask = find_mask(context)
    if mask is not None and mask.value != 0:
        found = f"{mask.dim} from {mask.start} on as {mask.value}"
        raise context.refuse("SPY549", "masked integers that are not 0", "0", found)
    for space in spaces(context, (), () if mask is None else (mask.dim,)):
        yield _block(context, space, mask)


def _check_formats(context: PlanContext) -> None:
    source, target = _FORMATS[context.spec.kernel_op]
    wanted = [source] * len(context.inputs) + [target]
    for access, name in zip(context.accesses, wanted, strict=True):
        tensor = access.tensor
        capacity = int(np.prod(tensor.stick_sizes)) * element_bits(tensor)
        if tensor.data_format == name and capacity == 8 * STICK_BYTES:
            continue
        message = f"{tensor.name} has a format that is not simulated here"
        found = f"{tensor.data_format}, stick {tensor.stick_sizes}"
        raise context.refuse("SPY522", message, f"{name} in sticks of {STICK_BYTES} bytes", found)


def _check_sticks(context: PlanContext) -> None:
    """Packed outputs have the stick of their operation, every other operand one stick dim."""
    first = context.inputs[0].tensor.stick_dims
    for access in context.accesses:
        shape = _SHAPES.get(context.spec.name)
        if shape is not None and access is context.output:
            others = [d for d in access.tensor.stick_dims if d != first[0]]
            other = others[0] if others else "another dim"
            check_stick(context, access, [((first[0], other)[k], n) for k, n in shape])
        elif access.tensor.stick_dims != first[:1]:
            raise context.stick_error(
                f"stick {first[0]!r} as in {context.inputs[0].tensor.name}",
                f"stick {access.tensor.stick_dims} in {access.tensor.name}",
            )


def _line(context: PlanContext, space: OffsetSpace, dim: str) -> Int64Array:
    """Offsets over all slices; a stick dim of no tensor is the lanes of the output's stick."""
    line, tensor = space.line(dim), context.output.tensor
    if any(access.tensor.holds(dim) for access in context.accesses):
        return line
    if tensor.stick_dims != (dim,):
        return line[:, :1] * 0
    lanes, output = np.arange(tensor.stick_sizes[0]), len(context.accesses) - 1
    found = np.zeros((len(line), len(lanes)), np.int64)
    found[output] = lanes * element_bits(tensor)
    found[output + 1 :] = space.line(dim)[output + 1 :, : len(lanes)]
    return found


def _split_sticks(
    context: PlanContext, dim: str, line: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """The line of a stick dim within one stick, and from stick to stick: memory in its order."""
    unit = max(access.sticks.get(dim, 1) for access in context.accesses)
    if context.op.core_extent(dim) % unit:
        return line, line[:, :1] * 0
    return line[:, :unit], line[:, ::unit]


def _block(context: PlanContext, space: OffsetSpace, mask: Mask | None) -> Int64Array:
    op, tensor, output = context.op, context.output.tensor, len(context.accesses) - 1
    sticks = [d for a in context.accesses for d in a.tensor.stick_dims]
    inner = tensor.stick_dims[-1]

    def collect(dims: Sequence[str], *more: Int64Array) -> Int64Array:
        lines = [*(_line(context, space, dim) for dim in dims), *more]
        lines.sort(key=lambda line: -int(np.abs(line[output]).max(initial=0)))
        return combine(context, lines, len(space.bases))

    within, by_stick = _split_sticks(context, inner, _line(context, space, inner))
    middle = collect([d for d in op.dims if d in sticks and d != inner])
    outer = collect([d for d in op.dims if d not in sticks], by_stick)
    vectors = [outer, middle, within]
    row = RowWriter(tb.REQUANTIZE_KIND)
    row.operands(context, space.bases.tolist())
    for k, name in enumerate(context.spec.constants):
        row.words[tb.CONSTANT + k] = float_word(context.constant(name))
    if context.is_set(OVERFLOW_CONSTANT):
        row.words[tb.FLAGS] = tb.REFUSE_OVERFLOW
    if mask is not None:
        mask.write(row)
        row.words[tb.CONSTANT] = space.bases[output + 1]
    counts = [group.shape[1] for group in vectors]
    row.words[tb.COUNTS : tb.COUNTS + 3] = counts
    row.header(
        opcode=tb.REQUANTIZATIONS.index(context.spec.kernel_op),
        inputs=len(context.inputs),
        units=counts[0] * -(-counts[1] // tb.MIDDLE_BLOCK),
        cost_ns=int(np.prod(counts) * context.spec.element_ns),
    )
    return attach(row.words, vectors)
