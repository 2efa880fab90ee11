"""The slow reference of packed and windowed operations, element by element.

Positions in a stick are worked out digit by digit (SDSC reference §5.2 step 5, operations reference
§5), 4-bit elements one nibble at a time. Windows (operations reference §7): the stored coordinate
of the first input is position · stride + place · dilation, less the front padding where memory does
not hold it; coordinates outside of the stored extent are padding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import NIBBLE_SHIFTS, encode_device, find_stored_format
from spyre.hw.ops import OpDefinition
from spyre.hw.reference.definitions import constant
from spyre.hw.reference.execution import (
    Coordinates,
    Execution,
    Int64Array,
    keeps_one_per_stick,
    position_in_stick,
    slice_origin,
    stick_elements,
    stick_offsets,
)
from spyre.hw.spec_choices import (
    ALTERNATING_OPERANDS,
    QUANTIZE_TIES_TO_EVEN,
    QUANTIZED_FP8_MAX,
    WINDOW_MAX_OUTSIDE,
)
from spyre.mlir.operation import MASK_CONSTANT, Operation, Padding, Tensor

Array = npt.NDArray[Any]


def bits_of(tensor: Tensor) -> int:
    """Bits of one element."""
    return find_stored_format(tensor.data_format).bits


def is_interleaved(execution: Execution, operand: int) -> bool:
    """True if groups of 8 of the operand's stick dim alternate between two halves of 64 (§5)."""
    tensor = execution.op.tensors[operand]
    fills_block = stick_elements(tensor, tensor.stick_dims[0]) == 128
    return (
        fills_block
        and bits_of(tensor) < 16
        and (execution.op.name, operand) in ALTERNATING_OPERANDS
    )


def bit_addresses(execution: Execution, operand: int, core: int, stored: Coordinates) -> Int64Array:
    """Bit address of the elements at ``stored`` coordinates, counted from the core's start."""
    tensor = execution.op.tensors[operand]
    offset, within = stick_offsets(execution.op, tensor, stored)
    if is_interleaved(execution, operand):
        dim = tensor.stick_dims[0]
        half, group, element = within[dim] // 64, within[dim] // 8 % 8, within[dim] % 8
        within[dim] = 16 * group + 8 * half + element
    address = int(execution.starts[operand, core]) + offset
    return 8 * address + position_in_stick(tensor, within) * bits_of(tensor)


def read_packed(execution: Execution, operand: int, core: int, stored: Coordinates) -> Array:
    """Numbers of an operand at ``stored`` coordinates, as float64 (int32 is exact in it)."""
    tensor = execution.op.tensors[operand]
    bits = bit_addresses(execution, operand, core, stored)
    if bits_of(tensor) != 4:
        codes = execution.read_codes(bits // 8, tensor)
        return execution.decode(codes, tensor).astype(np.float64)
    low = int(bits.min()) // 8
    memory = execution.memory.view(low, int(bits.max()) // 8 - low + 1)
    nibble = (memory[bits // 8 - low] >> np.array(NIBBLE_SHIFTS)[bits % 8 // 4]) & 15
    return np.asarray(np.where(nibble >= 8, nibble.astype(np.float64) - 16, nibble))


def write_packed(execution: Execution, core: int, stored: Coordinates, values: Array) -> None:
    """Store numbers, rounded to the output's format, at ``stored`` coordinates."""
    operand = execution.output
    tensor = execution.op.tensors[operand]
    bits = bit_addresses(execution, operand, core, stored)
    if bits_of(tensor) == 4:
        _write_nibbles(execution, bits, values)
        return
    is_float = find_stored_format(tensor.data_format).is_float
    codes = (
        execution.encode(values, tensor) if is_float else encode_device(values, tensor.data_format)
    )
    lanes = 1
    if keeps_one_per_stick(tensor):
        lanes = stick_elements(tensor, tensor.stick_dims[0])
    for lane in range(lanes):
        execution.write_codes(bits // 8 + lane * bits_of(tensor) // 8, codes, tensor)


def _write_nibbles(execution: Execution, bits: Int64Array, values: Array) -> None:
    low = int(bits.min()) // 8
    memory = execution.memory.view(low, int(bits.max()) // 8 - low + 1)
    codes = values.astype(np.int64) & 15
    for place, shift in enumerate(NIBBLE_SHIFTS):
        chosen = bits % 8 // 4 == place
        at = bits[chosen] // 8 - low
        memory[at] = (memory[at] & (0xF0 >> shift)) | (codes[chosen] << shift).astype(np.uint8)


# --- elementwise ------------------------------------------------------------------------------


def masked(execution: Execution, core: int, values: Array) -> Array:
    """``values`` of the first input with masked coordinates replaced (§6.3)."""
    for dim, intervals in execution.op.masks.items():
        coordinate = execution.global_coordinate(dim, core)
        for start, count in intervals:
            inside = (coordinate >= start) & (coordinate < start + count)
            values = np.where(inside, constant(execution.op, MASK_CONSTANT), values)
    return values


def run_requantize(execution: Execution, spec: OpDefinition) -> None:
    """Quantise, convert or compute, element by element."""
    constants = [float(constant(execution.op, name)) for name in spec.constants]
    for core in execution.cores:
        inputs = [read_packed(execution, k, core, execution.local) for k in range(spec.inputs)]
        inputs[0] = masked(execution, core, inputs[0])
        with np.errstate(all="ignore"):
            result = _REQUANTIZE[spec.kernel_op](*inputs, *constants)
        write_packed(execution, core, execution.local, result)


def _quantize(x: Array, scale: float, shift: float, bits: int) -> Array:
    exact = x * scale + shift
    rounded = np.rint(exact)
    if not QUANTIZE_TIES_TO_EVEN:
        rounded = np.copysign(np.floor(np.abs(exact) + 0.5), exact)
    whole = np.nan_to_num(rounded, nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.asarray(np.clip(whole, -(1 << bits - 1), (1 << bits - 1) - 1))


def _wrapped(values: Array) -> Array:
    """int64 → int32, keeping the low bits."""
    return values.astype(np.int64).astype(np.int32)


_REQUANTIZE: dict[str, Any] = {
    "quantize8": lambda x, a, b: _quantize(x, a, b, 8),
    "quantize4": lambda x, a, b: _quantize(x, a, b, 4),
    "to_fp8": lambda x: np.clip(x, -QUANTIZED_FP8_MAX, QUANTIZED_FP8_MAX),
    "value": lambda x: x,
    "add": lambda a, b: _wrapped(a.astype(np.int64) + b.astype(np.int64)),
    "mul": lambda a, b: _wrapped(a.astype(np.int64) * b.astype(np.int64)),
    "truncate": lambda x: x,
    "from_int": lambda x: x,
}
"""The operations of the op table's kernel names; writing rounds to the output's format."""

_NOT_STORED = (None, Padding.NONE, Padding.IMPLIED)


def input_coordinates(
    op: Operation, points: Coordinates, core: int
) -> tuple[dict[str, Int64Array], Array]:
    """Stored coordinates of the first input at ``points`` of a core's box; if they are inside."""
    tensor = op.inputs[0]
    local = dict(points)
    inside = np.ones(local[op.dims[0]].shape, np.bool_)
    for dim, window in op.windows.items():
        implied = tensor.padding.get(dim) in _NOT_STORED
        front, back = (window.pad_front, window.pad_back) if implied else (0, 0)
        extent = window.total - front - back
        reach = local[window.window_dim] * window.dilation - front
        in_tensor = (points[dim] + slice_origin(op, core)[dim]) * window.stride + reach
        local[dim] = points[dim] * window.stride + reach
        inside &= (in_tensor >= 0) & (in_tensor < extent)
    return local, inside


def _window_places(op: Operation) -> list[str]:
    return [window.window_dim for window in op.windows.values()]


def _dims_of(op: Operation, operand: int) -> list[str]:
    """Dims an operand varies along; the first input also along the places of its windows."""
    places = _window_places(op) if operand == 0 else []
    return [dim for dim in op.dims if op.tensors[operand].holds(dim) or dim in places]


def part_of_box(op: Operation, operand: int) -> tuple[slice | int, ...]:
    """Index of the part of a core's box that an operand varies along."""
    dims = _dims_of(op, operand)
    return tuple(slice(None) if dim in dims else 0 for dim in op.dims)


def _part(execution: Execution, operand: int, core: int, outside: float = 0.0) -> Array:
    """Numbers of an operand over the dims it varies along, padding replaced by ``outside``."""
    stored: Coordinates = execution.local
    inside = np.ones(execution.local[execution.op.dims[0]].shape, np.bool_)
    if operand == 0:
        stored, inside = input_coordinates(execution.op, execution.local, core)
    part = part_of_box(execution.op, operand)
    inside = inside[part]
    stored = {dim: np.where(inside, c[part], 0) for dim, c in stored.items()}
    return np.where(inside, read_packed(execution, operand, core, stored), outside)


def sharing_cores(op: Operation) -> Iterator[list[int]]:
    """Cores that work on the same part of the output, in order of the other slices.

    Cores with all slices equal repeat the work and share nothing.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    seen: Counter[tuple[int, ...]] = Counter()
    for core in range(len(op.cores)):
        slices = tuple(op.core_slices[core].get(dim, 0) for dim in op.dims)
        kept = [n for n, dim in zip(slices, op.dims, strict=True) if op.outputs[0].holds(dim)]
        groups.setdefault((*kept, seen[slices]), []).append(core)
        seen[slices] += 1
    for group in groups.values():
        yield sorted(group, key=lambda c: tuple(op.core_slices[c].get(d, 0) for d in op.dims))


def _write(execution: Execution, core: int, kept: Array) -> None:
    """Write an array over the output's dims."""
    part = part_of_box(execution.op, execution.output)
    stored = {dim: c[part] for dim, c in execution.local.items()}
    write_packed(execution, core, stored, kept)


def einsum_formula(op: Operation, inputs: int) -> str:
    """The sum of products of the first ``inputs`` operands, for `numpy.einsum`."""
    letters = dict(zip(op.dims, "abcdefghijkl", strict=False))
    terms = ["".join(letters[dim] for dim in _dims_of(op, k)) for k in (*range(inputs), -1)]
    return f"{','.join(terms[:-1])}->{terms[-1]}"


def run_packed_matmul(execution: Execution, spec: OpDefinition) -> None:
    """Σ A·B over all dims the output lacks; partial sums of cores in order, rounded to float32."""
    op = execution.op
    formula, exact = einsum_formula(op, 2), spec.kernel_op.startswith("int")
    for group in sharing_cores(op):
        operands = [[_part(execution, k, core) for k in (0, 1)] for core in group]
        with np.errstate(all="ignore"):
            sums = [np.einsum(formula, a, b, optimize=True) for a, b in operands]
            total = reduce(np.add, sums if exact else [s.astype(np.float32) for s in sums])
        _write(execution, group[0], total)


def run_windowing(execution: Execution, spec: OpDefinition) -> None:
    """Pooling and depthwise convolution, in float64 and rounded once."""
    op = execution.op
    places = tuple(i for i, dim in enumerate(_dims_of(op, 0)) if dim in _window_places(op))
    for core in execution.cores:
        if spec.kernel_op == "max":
            values = _part(execution, 0, core, WINDOW_MAX_OUTSIDE)
            _write(execution, core, np.fmax.reduce(values, axis=places, initial=-np.inf))
            continue
        operands = [_part(execution, k, core) for k in range(spec.inputs)]
        with np.errstate(all="ignore"):
            result = np.einsum(einsum_formula(op, spec.inputs), *operands)
            if spec.constants:
                result = result.astype(np.float32) * constant(op, spec.constants[0])
        _write(execution, core, result)
