"""Twin of packed matmuls, quantising and packed conversions, and how packed elements are addressed.

Positions in a stick are worked out digit by digit (SDSC reference §5.2 step 5, operations reference
§5), 4-bit elements one nibble at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import NIBBLE_SHIFTS, encode_device, find_stored_format
from spyre.hw.ops.spec_choices import ALTERNATING_OPERANDS, QUANTIZE_TIES_TO_EVEN, QUANTIZED_FP8_MAX
from spyre.hw.ops.table import OpDefinition
from spyre.hw.reference.addresses import Coordinates, Int64Array, pitches, stick_elements
from spyre.hw.reference.execution import Execution, keeps_one_per_stick
from spyre.hw.reference.values import constant
from spyre.mlir.operation.operation import Tensor

Array = npt.NDArray[Any]


def bits_of(tensor: Tensor) -> int:
    """Bits of one element."""
    return find_stored_format(tensor.data_format).bits


def position_in_stick(execution: Execution, operand: int, within: Coordinates) -> Int64Array:
    """Element number in the stick; a dim may be listed twice, its low digit first."""
    tensor = execution.op.tensors[operand]
    rest = dict(within)
    if is_interleaved(execution, operand):
        dim = tensor.stick_dims[0]
        half, group, element = rest[dim] // 64, rest[dim] // 8 % 8, rest[dim] % 8
        rest[dim] = 16 * group + 8 * half + element
    position = np.zeros_like(next(iter(rest.values())))
    weight = 1
    for dim, size in zip(tensor.stick_dims, tensor.stick_sizes, strict=True):
        position += weight * (rest[dim] % size)
        rest[dim] = rest[dim] // size
        weight *= size
    return position


def is_interleaved(execution: Execution, operand: int) -> bool:
    """True if groups of 8 of the operand's stick dim alternate between two halves of 64 (§5)."""
    tensor = execution.op.tensors[operand]
    whole = stick_elements(tensor, tensor.stick_dims[0]) == 128
    return whole and bits_of(tensor) < 16 and (execution.op.name, operand) in ALTERNATING_OPERANDS


def bit_addresses(execution: Execution, operand: int, core: int, stored: Coordinates) -> Int64Array:
    """Bit address of the elements at ``stored`` coordinates, counted from the core's start."""
    op, tensor = execution.op, execution.op.tensors[operand]
    pitch = pitches(op, tensor)
    shape = next(iter(stored.values())).shape
    address = np.full(shape, 8 * int(execution.starts[operand, core]), np.int64)
    within = {}
    for dim in tensor.dims:
        coordinate = stored[dim] if tensor.scale[dim] == 1 else np.zeros(shape, np.int64)
        size = stick_elements(tensor, dim)
        address += 8 * pitch[dim] * (coordinate // size)
        within[dim] = coordinate % size
    return address + position_in_stick(execution, operand, within) * bits_of(tensor)


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
    whole = find_stored_format(tensor.data_format).is_float
    codes = execution.encode(values, tensor) if whole else encode_device(values, tensor.data_format)
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


def run_recode(execution: Execution, spec: OpDefinition) -> None:
    """Quantise, convert or compute, element by element."""
    constants = [float(constant(execution.op, name)) for name in spec.constants]
    for core in execution.cores:
        inputs = [read_packed(execution, k, core, execution.local) for k in range(spec.inputs)]
        with np.errstate(all="ignore"):
            result = _RECODE[spec.kernel_op](*inputs, *constants)
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


_RECODE: dict[str, Any] = {
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
