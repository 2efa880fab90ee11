"""Logical arrays in device memory: tensors of HBM as numpy arrays over their dims.

Addresses come from the reference, on the operation without work slices: in HBM a tensor's place
does not depend on them.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.dtypes import decode_device, encode_device, find_stored_format
from spyre.hw.reference import Execution
from spyre.hw.reference.execution import stored_elements
from spyre.hw.reference.packed import bit_addresses
from spyre.mlir.operation.operation import Operation
from tests.hw.harness import (
    Array,
    allocations_of,
    engine,
    link,
    literal_starts,
    map_tensors,
    windows,
)


class Bench(msgspec.Struct, frozen=True):
    """One operation on a device, its operands as arrays over dims named by the caller."""

    op: Operation
    threads: int = 1

    def _bits(self, operand: int, dims: tuple[str, ...]) -> Array:
        """Bit address of every element the memory holds of an operand, in the order of ``dims``."""
        op = map_tensors(self.op, lambda t: replace(t, starts=t.starts[:1]))
        op = replace(op, slices={}, cores=op.cores[:1], core_slices=({},))
        execution = Execution(op, engine("dl16", self.threads).memory, literal_starts(op))
        tensor = op.tensors[operand]
        grid = np.indices(tuple(stored_elements(op, tensor, d) for d in dims), dtype=np.int64)
        stored = dict(zip(dims, grid, strict=True))
        zero = np.zeros(grid.shape[1:], np.int64)
        return bit_addresses(execution, operand, 0, {d: stored.get(d, zero) for d in op.dims})

    def put(self, operand: int, dims: tuple[str, ...], values: Array) -> None:
        """Store numbers over ``dims``; the array may be smaller than the tensor, the rest is 0."""
        bits = self._bits(operand, dims)
        name = self.op.tensors[operand].data_format
        whole = np.zeros(bits.shape)
        whole[tuple(slice(0, n) for n in values.shape)] = values
        code = encode_device(whole.astype(np.float32), name).reshape(-1)
        self._write(bits.reshape(-1), code, find_stored_format(name).bits)

    def _write(self, bits: Array, codes: Array, width: int) -> None:
        low, high = int(bits.min()) // 8, int(bits.max() + width) // 8 + 1
        memory = engine("dl16", self.threads).memory.view(low, high - low)
        if width == 4:
            for half in (0, 4):
                chosen = bits % 8 == half
                at = bits[chosen] // 8 - low
                nibbles = (codes[chosen].astype(np.int64) & 15) << half
                memory[at] = (memory[at] & (0xF0 >> half)) | nibbles.astype(np.uint8)
            return
        raw = np.ascontiguousarray(codes).view(np.uint8).reshape(len(bits), -1)
        memory[(bits // 8 - low)[:, None] + np.arange(raw.shape[1])] = raw

    def run(self) -> None:
        """Execute once."""
        device = engine("dl16", self.threads)
        device.executor.run(link(device, [self.op], allocations_of(windows(self.op))))

    def get(self, dims: tuple[str, ...]) -> Array:
        """Numbers of the output over ``dims``, codes for 8-bit floats."""
        operand = len(self.op.tensors) - 1
        bits = self._bits(operand, dims)
        name = self.op.tensors[operand].data_format
        width = find_stored_format(name).bits
        low, high = int(bits.min()) // 8, int(bits.max() + width) // 8 + 1
        memory = engine("dl16", self.threads).memory.view(low, high - low)
        if width == 4:
            nibble = (memory[bits // 8 - low] >> (bits % 8)) & 15
            return np.where(nibble >= 8, nibble.astype(np.int64) - 16, nibble)
        dtype = np.dtype(find_stored_format(name).code_dtype)
        lanes = memory[(bits // 8 - low)[..., None] + np.arange(width // 8)]
        codes = np.ascontiguousarray(lanes).view(dtype)[..., 0]
        return codes if name.endswith("FP8") else decode_device(codes, name)
