"""From the typed SDSC to an :class:`Operation`: every irregularity of the file resolved.

Second step of the way file → :class:`Sdsc` → Operation → core plan. Raises SdscError with the
JSON path where the file cannot mean anything, and UnsupportedError where it means something that
is not simulated (:mod:`.sdsc_support`). Consistency that reading does not need is checked by
:mod:`.sdsc_rules`. Rules: SuperDSC reference §2-§8 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UnsetType

from spyre.mlir.operation import Operation
from spyre.mlir.sdsc_dim_reader import (
    read_extents,
    read_last_extents,
    read_symbolic_dims,
    read_windows,
)
from spyre.mlir.sdsc_reading import Reading, read_core_slices, unknown_dim
from spyre.mlir.sdsc_structs import ComputeOp, Constant, Sdsc, given
from spyre.mlir.sdsc_support import unsupported_features
from spyre.mlir.sdsc_tensor_reader import read_tensor


def read_operation(sdsc: Sdsc, file: str) -> Operation:
    """The operation an SDSC describes.

    ``file`` names the SDSC in errors. SdscError: the file contradicts the format;
    UnsupportedError: valid, but not simulated.
    """
    require_dsc(sdsc, file)
    reading = Reading(sdsc, file)
    for error in unsupported_features(sdsc, file):
        raise error
    op = _compute_op(reading)
    extents = read_extents(reading)
    slices = _slices(reading, extents)
    inputs, index_inputs, outputs = _operand_indices(reading, op)
    return Operation(
        name=op.name,
        file=file,
        sdsc_name=sdsc.name,
        dims=tuple(extents),
        extents=extents,
        cores=reading.cores,
        slices=slices,
        core_slices=_core_slices(reading, extents),
        inputs=tuple(read_tensor(reading, i) for i in inputs),
        outputs=tuple(read_tensor(reading, i) for i in outputs),
        index_tensors=tuple(read_tensor(reading, i) for i in index_inputs),
        masks=_masks(reading),
        constants=_constants(reading),
        constant_formats={c.name: c.data_format for c in _constant_table(reading).values()},
        data_format=_data_format(reading, op, inputs or outputs),
        unit=given(op.unit, "sfp"),
        windows=read_windows(reading, extents),
        symbolic_dims=read_symbolic_dims(reading, extents),
        last_extents=read_last_extents(reading, extents, slices),
    )


# --- the DSC as a whole -----------------------------------------------------------------------


def require_dsc(sdsc: Sdsc, file: str) -> None:
    """Raises unless there is a DSC to look at: SdscError, or UnsupportedError for data ops only."""
    reading, body = Reading(sdsc, file), sdsc.body
    if not given(body.dscs, ()):
        for error in unsupported_features(sdsc, file):
            raise error
        raise reading.error("SPY207", "no DSC to execute", reading.path, "one entry in dscs_")
    for index, entry in enumerate(given(body.dscs, ())):
        if len(entry) != 1:
            raise reading.error(
                "SPY204",
                "a DSC entry holds exactly one DSC",
                f"{reading.path}.dscs_[{index}]",
                "an object with one key, the DSC's name",
                f"{len(entry)} keys",
            )


def _compute_op(reading: Reading) -> ComputeOp:
    if not reading.dsc.compute_ops:
        path = f"{reading.dsc_path}.computeOp_"
        raise reading.error("SPY207", "the DSC has no compute op", path, "one entry")
    return reading.dsc.compute_ops[0]


def _slices(reading: Reading, extents: Mapping[str, int]) -> dict[str, int]:
    path = f"{reading.path}.numWkSlicesPerDim_"
    table = given(reading.sdsc.body.slices, {})
    for dim in table.keys() - extents.keys():
        raise unknown_dim(reading, dim, extents, f"{path}.{dim}")
    return {dim: reading.integer(table.get(dim, 1), f"{path}.{dim}") for dim in extents}


def _core_slices(reading: Reading, extents: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
    """Slice index per dim, for every used core in order; all 0 when the table is absent."""
    table = reading.sdsc.body.core_slices
    path = f"{reading.path}.coreIdToWkSlice_"
    if isinstance(table, UnsetType):
        return tuple(dict.fromkeys(extents, 0) for _ in reading.cores)
    return read_core_slices(reading, table, extents, path)


def _masks(reading: Reading) -> dict[str, tuple[tuple[int, int], ...]]:
    path = f"{reading.dsc_path}.coordinateMasking_"
    masks = {}
    for dim, ranges in given(reading.dsc.masks, {}).items():
        for index, entry in enumerate(ranges):
            if len(entry) != 2:
                place, found = f"{path}.{dim}[{index}]", f"{len(entry)} numbers"
                raise reading.error("SPY237", "malformed mask", place, "[start, count]", found)
        if ranges:
            masks[dim] = tuple(
                (reading.integer(start, path), reading.integer(count, path))
                for start, count in ranges
            )
    return masks


# --- constants --------------------------------------------------------------------------------


def _constant_table(reading: Reading) -> Mapping[str, Constant]:
    """``constantInfo_``; the text "{}" means none."""
    table = reading.dsc.constants
    if isinstance(table, dict):
        return table
    if isinstance(table, str) and table.strip() != "{}":
        path = f"{reading.dsc_path}.constantInfo_"
        expected = 'an object, or the text "{}"'
        raise reading.error("SPY240", "constants cannot be read", path, expected, table[:60])
    return {}


def _constants(reading: Reading) -> dict[str, int]:
    constants: dict[str, int] = {}
    for key, constant in _constant_table(reading).items():
        path = f"{reading.dsc_path}.constantInfo_.{key}"
        if constant.name in constants:
            message = f"constant {constant.name} is given twice"
            raise reading.error("SPY240", message, f"{path}.name_", "distinct names")
        constants[constant.name] = _bit_pattern(reading, constant, path)
    return constants


def _bit_pattern(reading: Reading, constant: Constant, path: str) -> int:
    values = list(given(constant.data.data, {}).values())
    if not values:
        raise reading.error("SPY240", f"constant {constant.name} has no value", f"{path}.data_")
    if any(value != values[0] for value in values):
        message = f"constant {constant.name} differs between cores: not simulated"
        raise reading.unsupported("SPY511", message, f"{path}.data_.data_")
    value = values[0]
    if isinstance(value, tuple):
        if len(value) != 1:
            expected, found = "a list of one bit pattern", f"{len(value)} entries"
            message = f"constant {constant.name} is malformed"
            raise reading.error("SPY240", message, f"{path}.data_.data_", expected, found)
        value = value[0]
    return int(value) if isinstance(value, bool) else reading.integer(value, f"{path}.data_.data_")


def _data_format(reading: Reading, op: ComputeOp, operands: tuple[int, ...]) -> str:
    """Execution format: the op's attribute, else that of the first operand."""
    if not isinstance(op.attributes, UnsetType):
        return op.attributes.data_format
    return reading.dsc.tensors[operands[0]].data_format


# --- operands ---------------------------------------------------------------------------------


def _operand_indices(
    reading: Reading, op: ComputeOp
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Indices of inputs, index tensors and outputs.

    Reductions list their output among the inputs (real-bundles.md); it is not read.
    """
    path = f"{reading.dsc_path}.computeOp_[0]"
    if not op.outputs:
        raise reading.error("SPY250", "the operation has no output", f"{path}.outputLabeledDs")
    outputs = _resolve(reading, op.outputs, f"{path}.outputLabeledDs")
    index_names = given(op.index_inputs, ())
    index_inputs = _resolve(reading, index_names, f"{path}.indirectAccessIndexLabeledDs")
    listed = _resolve(reading, op.inputs, f"{path}.inputLabeledDs")
    inputs = tuple(i for i in listed if i not in outputs and i not in index_inputs)
    return inputs, index_inputs, outputs


def _resolve(reading: Reading, names: tuple[str, ...], path: str) -> tuple[int, ...]:
    return tuple(_tensor_index(reading, name, f"{path}[{i}]") for i, name in enumerate(names))


def _tensor_index(reading: Reading, name: str, path: str) -> int:
    """``"Tensor0-idx0"`` → 0: the name and, after the last '-', the index of a tensor."""
    tensors = reading.dsc.tensors
    label, _, suffix = name.rpartition("-")
    digits = suffix[3:]
    if suffix[:3] == "idx" and digits.isdecimal() and len(digits) < 4:
        index = int(digits)
        if index < len(tensors) and tensors[index].name == label:
            return index
    known = ", ".join(f"{t.name}-idx{t.index}" for t in tensors)
    raise reading.error("SPY218", f"no tensor is called {name}", path, f"one of {known}", name)
