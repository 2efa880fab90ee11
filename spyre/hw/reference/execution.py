"""What the reference reads and writes: elements of one execute's operands, as codes and as numbers.

Operands are numbered as in ``Operation.tensors`` (inputs, index tensors, outputs), cores by their
position in ``Operation.cores``. Memory is anything that gives views of byte ranges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spyre.dtypes import NumericRules, decode_device, encode_device, find_stored_format
from spyre.hw.numerics import Numerics
from spyre.hw.reference.addresses import (
    STICK_BYTES,
    Coordinates,
    Int64Array,
    addresses_elsewhere,
    element_offsets,
    local_coordinates,
    slice_origin,
)
from spyre.mlir.operation import Operation, Tensor

Codes = npt.NDArray[Any]
Float32Array = npt.NDArray[np.float32]


class Memory(Protocol):
    """Device memory, addressed as :class:`~spyre.hw.memory.device_memory.DeviceMemory` is."""

    def view(self, address_bytes: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes of a range within one region or LX, writable in place."""


class IndexOutOfRange(Exception):
    """An index tensor holds ``index``, which is out of range."""

    def __init__(self, index: int) -> None:
        super().__init__(f"index {index} is out of range")
        self.index = index


@dataclass(frozen=True)
class Execution:
    """One execute.

    ``starts``: byte address in ``memory`` of every operand on every core, [operand, core].
    ``arrangements``: element arrangement per operand (empty: STANDARD). ``index_limit``: first
    index of an indirect access that is out of range (None: only negative ones are).
    """

    op: Operation
    memory: Memory
    starts: Int64Array
    numerics: Numerics = field(default_factory=Numerics)
    arrangements: tuple[str, ...] = ()
    index_limit: int | None = None

    @cached_property
    def local(self) -> dict[str, Int64Array]:
        """Local coordinates of every core's box; all boxes have the same shape."""
        return local_coordinates(self.op)

    @property
    def cores(self) -> range:
        """Positions of the cores."""
        return range(len(self.op.cores))

    @property
    def output(self) -> int:
        """Number of the one output."""
        return len(self.op.tensors) - 1

    @property
    def adds_in_chunks(self) -> bool:
        """True if sums of this operation accumulate in DL16: 16-bit results in dl16-chunk."""
        return self.numerics.chunked and self.op.outputs[0].data_format == "SEN169_FP16"

    def global_coordinate(self, dim: str, core: int) -> Int64Array:
        """Coordinate along ``dim`` of every element of a core's box."""
        return self.local[dim] + slice_origin(self.op, core)[dim]

    def arrangement(self, operand: int) -> str:
        """Element arrangement of an operand."""
        return self.arrangements[operand] if self.arrangements else "STANDARD"

    def addresses(self, operand: int, core: int, local: Coordinates | None = None) -> Int64Array:
        """Byte address of every element of the core's box (or of other coordinates)."""
        where = self.local if local is None else local
        if self.op.tensors[operand].own_core_slices:
            origin = slice_origin(self.op, core)
            box = {dim: coordinate + origin[dim] for dim, coordinate in where.items()}
            return addresses_elsewhere(self.op, self.starts, operand, core, box)
        offsets = element_offsets(self.op, self.op.tensors[operand], where)
        return offsets + int(self.starts[operand, core])

    def decode(self, codes: Codes, tensor: Tensor) -> Float32Array:
        """Numbers of codes of the tensor's format."""
        values: Float32Array = decode_device(codes, tensor.data_format, self._rules)
        return values

    def encode(self, values: npt.NDArray[Any], tensor: Tensor) -> Codes:
        """Codes of numbers, rounded once (from float32) to the tensor's format."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            rounded = values.astype(np.float32)
        return encode_device(rounded, tensor.data_format, self._rules)

    @property
    def _rules(self) -> NumericRules:
        return self.numerics.alu_rules

    def read_codes(self, addresses: Int64Array, tensor: Tensor) -> Codes:
        """Bit patterns of the tensor's elements at ``addresses``."""
        dtype = _code_dtype(tensor)
        low = int(addresses.min())
        memory = self.memory.view(low, int(addresses.max()) - low + dtype.itemsize)
        lanes = addresses[..., None] - low + np.arange(dtype.itemsize)
        codes: Codes = memory[lanes].view(dtype)[..., 0]
        return codes

    def write_codes(self, addresses: Int64Array, codes: Codes, tensor: Tensor) -> None:
        """Store bit patterns; of several for one address the last in order stays."""
        dtype = _code_dtype(tensor)
        low = int(addresses.min())
        memory = self.memory.view(low, int(addresses.max()) - low + dtype.itemsize)
        lanes = addresses[..., None] - low + np.arange(dtype.itemsize)
        memory[lanes] = np.ascontiguousarray(codes, dtype)[..., None].view(np.uint8)

    def read(self, operand: int, core: int) -> Float32Array:
        """Numbers of an operand over a core's box."""
        tensor = self.op.tensors[operand]
        return self.decode(self.read_codes(self.addresses(operand, core), tensor), tensor)

    def write(self, core: int, values: npt.NDArray[Any]) -> None:
        """Round and store the output; a tensor of one value per stick gets it in all lanes."""
        tensor = self.op.tensors[self.output]
        self.write_sticks(core, self.encode(values, tensor))

    def write_sticks(self, core: int, codes: Codes) -> None:
        """Store the output's codes, replicated where its stick dim is absent (scale -2, §6.2)."""
        tensor = self.op.tensors[self.output]
        addresses = self.addresses(self.output, core)
        if not keeps_one_per_stick(tensor):
            self.write_codes(addresses, codes, tensor)
            return
        for lane in range(STICK_BYTES // tensor.word_length_bytes):
            self.write_codes(addresses + lane * tensor.word_length_bytes, codes, tensor)


def keeps_one_per_stick(tensor: Tensor) -> bool:
    """True if the tensor keeps one value per stick: it lacks a stick dim (scale -2, or -1)."""
    return any(not tensor.holds(dim) for dim in tensor.stick_dims)


def _code_dtype(tensor: Tensor) -> np.dtype[Any]:
    return np.dtype(find_stored_format(tensor.data_format).code_dtype)
