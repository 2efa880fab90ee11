"""Reads and writes of the reference: elements of one execute's operands, as codes and as numbers.

Operands are numbered as in ``Operation.tensors`` (inputs, index tensors, outputs), cores by their
position in ``Operation.cores``. Memory is anything that gives views of byte ranges. The addresses
of elements follow the address rule of the SDSC reference §5.2, step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import product
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.dtypes import NumericRules, decode_device, encode_device, find_stored_format
from spyre.hw.numerics import Numerics
from spyre.mlir.operation import Indirection, Operation, Padding, Tensor

# --- addresses ---------------------------------------------------------------------------------

Int64Array = npt.NDArray[np.int64]
Coordinates = Mapping[str, Int64Array]
"""Per dim of the operation, the coordinate of every element of an array."""

STICK_BYTES = 128


def core_extents(op: Operation) -> dict[str, int]:
    """Elements of every dim that one core iterates (step 1)."""
    return {dim: op.extents[dim] // op.slices.get(dim, 1) for dim in op.dims}


def local_coordinates(op: Operation) -> dict[str, Int64Array]:
    """Local coordinates of one core's box, arrays in the shape of the box."""
    extents = core_extents(op)
    grid = np.indices(tuple(extents[dim] for dim in op.dims), dtype=np.int64)
    return dict(zip(op.dims, grid, strict=True))


def slice_origin(op: Operation, position: int) -> dict[str, int]:
    """Global coordinate of the first element of the ``position``-th core's box (step 1)."""
    extents = core_extents(op)
    return {dim: op.core_slices[position].get(dim, 0) * extents[dim] for dim in op.dims}


def stick_elements(tensor: Tensor, dim: str) -> int:
    """Elements of ``dim`` in one stick; 1 for dims outside of the stick."""
    total = 1
    for name, size in zip(tensor.stick_dims, tensor.stick_sizes, strict=True):
        total *= size if name == dim else 1
    return total


def stored_elements(op: Operation, tensor: Tensor, dim: str) -> int:
    """Elements the memory holds along ``dim`` (step 2, and §6.4 for indexed dims)."""
    if tensor.scale[dim] == -1:
        return 1
    if tensor.scale[dim] == -2:
        return stick_elements(tensor, dim)
    if dim in tensor.device_dim_sizes:
        return tensor.device_dim_sizes[dim]
    if tensor.indirection is Indirection.VALUE and tensor.max_dim_sizes.get(dim, -1) > 0:
        return tensor.max_dim_sizes[dim]
    if dim in op.windows and tensor.index == op.inputs[0].index:
        return windowed_elements(op, tensor, dim) + tensor.gap_elements.get(dim, 0)
    shares = tensor.own_slices or op.slices
    extent = op.extents[dim] // (shares.get(dim, 1) if tensor.is_local else 1)
    gap = tensor.gap_elements.get(dim, 0)
    return extent - gap if _gap_means_padding(op, tensor, dim, gap) else extent + gap


def windowed_elements(op: Operation, tensor: Tensor, dim: str) -> int:
    """Input elements along a windowed dim (operations reference §7); one core's in LX, if split."""
    window = op.windows[dim]
    if tensor.is_local and op.slices.get(dim, 1) > 1:
        reach = window.dilation * (op.extents[window.window_dim] - 1)
        return (core_extents(op)[dim] - 1) * window.stride + reach + 1
    implied = tensor.padding.get(dim) in (None, Padding.NONE, Padding.IMPLIED)
    return window.total - (window.pad_front + window.pad_back if implied else 0)


def _gap_means_padding(op: Operation, tensor: Tensor, dim: str, gap: int) -> bool:
    """§7: a padded restickify rounds N up to the other's stick and writes the excess as gap."""
    if op.name != "ReStickifyOpHBM" or dim in tensor.stick_dims:
        return False
    other = op.outputs[0] if tensor in op.inputs else op.inputs[0]
    stick = stick_elements(other, dim)
    return op.extents[dim] % stick == 0 and 0 < gap < stick


def pitches(op: Operation, tensor: Tensor) -> dict[str, int]:
    """Bytes from one stick (of a stick dim) or element to the next, per dim (steps 3 and 4)."""
    if tensor.pitches:
        return dict(tensor.pitches)
    result = {}
    pitch = tensor.first_pitch_bytes
    for dim in tensor.dims:
        result[dim] = pitch
        pitch *= -(-stored_elements(op, tensor, dim) // stick_elements(tensor, dim))
    return result


def stick_offsets(
    op: Operation, tensor: Tensor, local: Coordinates
) -> tuple[Int64Array, dict[str, Int64Array]]:
    """Byte offset of the stick of every local coordinate, and the coordinates within it."""
    pitch = pitches(op, tensor)
    offset = np.zeros_like(next(iter(local.values())))
    within = {}
    for dim in tensor.dims:
        coordinate = local[dim] if tensor.scale[dim] == 1 else np.zeros_like(offset)
        steps, within[dim] = np.divmod(coordinate, stick_elements(tensor, dim))
        offset += pitch[dim] * steps
    return offset, within


def element_offsets(op: Operation, tensor: Tensor, local: Coordinates) -> Int64Array:
    """Byte offset of the tensor's element at every local coordinate (steps 3 to 6)."""
    offset, within = stick_offsets(op, tensor, local)
    return offset + position_in_stick(tensor, within) * tensor.word_length_bytes


def position_in_stick(tensor: Tensor, within: dict[str, Int64Array]) -> Int64Array:
    """Element number in the stick; the stick's dims are listed innermost first (step 5)."""
    position = np.zeros_like(next(iter(within.values())))
    weight = 1
    remaining = dict(within)
    for dim, size in zip(tensor.stick_dims, tensor.stick_sizes, strict=True):
        position += weight * (remaining[dim] % size)
        remaining[dim] = remaining[dim] // size
        weight *= size
    return position


def addresses_elsewhere(
    op: Operation, starts: Int64Array, operand: int, core: int, box: Mapping[str, Int64Array]
) -> Int64Array:
    """Byte address, in the memory of the core that holds it, of every global coordinate ``box``.

    ``starts``: [operand, core]; ``core``: position of the core that asks.
    """
    tensor = op.tensors[operand]
    slices, rows = tensor.own_slices or op.slices, tensor.own_core_slices or op.core_slices
    extents = {dim: op.extents[dim] // slices.get(dim, 1) for dim in op.dims}
    shape = next(iter(box.values())).shape
    addresses = np.empty(shape, np.int64)
    for index in product(*map(range, shape)):
        point = {dim: int(coordinate[index]) for dim, coordinate in box.items()}
        owner = _owner(tensor, rows, extents, point, core)
        row = rows[owner]
        local = {dim: np.array([point[dim] - row.get(dim, 0) * extents[dim]]) for dim in op.dims}
        offset = element_offsets(op, tensor, local)
        addresses[index] = int(starts[operand, owner]) + int(offset[0])
    return addresses


def _owner(
    tensor: Tensor,
    rows: tuple[Mapping[str, int], ...],
    extents: Mapping[str, int],
    point: Mapping[str, int],
    core: int,
) -> int:
    """The first core, ``core`` before all others, that holds ``point``."""
    candidates: tuple[int, ...] = (core, *range(len(rows)))
    for candidate in candidates:
        row = rows[candidate]
        if row and all(
            row.get(dim, 0) == point[dim] // extents[dim]
            for dim in tensor.dims
            if tensor.holds(dim)
        ):
            return candidate
    raise LookupError(f"no core holds {dict(point)} of {tensor.name}")


# --- reads and writes of an execute -------------------------------------------------------------

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


class Execution(msgspec.Struct, frozen=True, dict=True):
    """One execute.

    ``starts``: byte address in ``memory`` of every operand on every core, [operand, core].
    ``arrangements``: element arrangement per operand (empty: STANDARD). ``index_limit``: first
    index of an indirect access that is out of range (None: only negative ones are).
    """

    op: Operation
    memory: Memory
    starts: Int64Array
    numerics: Numerics = msgspec.field(default_factory=Numerics)
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
        return decode_device(codes, tensor.data_format, self._rules)

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
        memory, lanes, dtype = self._bytes_of(addresses, tensor)
        codes: Codes = memory[lanes].view(dtype)[..., 0]
        return codes

    def write_codes(self, addresses: Int64Array, codes: Codes, tensor: Tensor) -> None:
        """Store bit patterns; of several for one address the last in order stays."""
        memory, lanes, dtype = self._bytes_of(addresses, tensor)
        memory[lanes] = np.ascontiguousarray(codes, dtype)[..., None].view(np.uint8)

    def _bytes_of(self, addresses: Int64Array, tensor: Tensor) -> tuple[Any, Any, np.dtype[Any]]:
        """The memory around elements, the places of their bytes in it, and their dtype."""
        dtype = np.dtype(find_stored_format(tensor.data_format).code_dtype)
        low = int(addresses.min())
        memory = self.memory.view(low, int(addresses.max()) - low + dtype.itemsize)
        return memory, addresses[..., None] - low + np.arange(dtype.itemsize), dtype

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
