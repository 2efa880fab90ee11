"""From the typed SDSC to an :class:`Operation`: every irregularity of the file resolved.

Second step of the way file → :class:`Sdsc` → Operation → core plan; operands are read by
:mod:`.tensor_reader`. Raises SdscError with the JSON path where the file cannot mean anything, and
UnsupportedError where it means something that is not simulated (:mod:`.reading`). Consistency that
reading does not need is checked by :mod:`.inspection`. Rules: SuperDSC reference §2-§8, §11
(sdsc.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UnsetType
from msgspec.structs import replace

from spyre.mlir.operation import Operation, Origin, SymbolicDim, Tensor, Window, indexed_dims
from spyre.mlir.sdsc.reading import (
    SdscDocument,
    dim_entries,
    read_core_slices,
    unknown_dim,
    unsupported_features,
)
from spyre.mlir.sdsc.structs import ComputeOp, ConstantInfo, Sdsc, given
from spyre.mlir.sdsc.tensor_reader import read_tensor

WINDOWS_KEY = "paddingSizes_"
SYMBOLIC_KEY = "symbolicDimInfo_"
_WINDOW_DIM = "windowDim_"
PADDING_FIELDS = {
    "pad_front": "padFront_",
    "pad_back": "padBack_",
    "unneeded": "unneededPad_",
    "unneeded_front": "unneededPadFront_",
    "unneeded_back": "unneededPadBack_",
}
_WINDOW_FIELDS = {
    "total": "totalSize_",
    "stride": "stride_",
    "dilation": "dilation_",
    **PADDING_FIELDS,
}
"""Members of a window and their keys; only the first has to be there."""


def read_operation(sdsc: Sdsc, file: str) -> Operation:
    """The operation an SDSC describes.

    ``file`` names the SDSC in errors. SdscError: the file contradicts the format;
    UnsupportedError: valid, but not simulated.
    """
    return operation_of(open_document(sdsc, file))


def open_document(sdsc: Sdsc, file: str) -> SdscDocument:
    """An SDSC with a DSC to look at; else SdscError, or UnsupportedError for data ops only."""
    document, body = SdscDocument(sdsc, file), sdsc.body
    if not given(body.dscs, ()):
        for error in unsupported_features(document):
            raise error
        raise document.error("SPY207", "no DSC to execute", document.path, "one entry in dscs_")
    for index, entry in enumerate(given(body.dscs, ())):
        if len(entry) != 1:
            message = "a DSC entry holds exactly one DSC"
            path = f"{document.path}.dscs_[{index}]"
            expected = "an object with one key, the DSC's name"
            raise document.error("SPY204", message, path, expected, f"{len(entry)} keys")
    return document


def operation_of(document: SdscDocument) -> Operation:
    """Like `read_operation`, for a file that was opened."""
    for error in unsupported_features(document):
        raise error
    op = _compute_op(document)
    extents, maxima = _extents(document)
    slices = _slices(document, extents)
    inputs, index_inputs, outputs = _operand_indices(document, op)
    constants = _constant_table(document)
    operation = Operation(
        name=op.name, file=document.file, sdsc_name=document.sdsc.name, dims=tuple(extents),
        extents=extents, cores=document.cores, slices=slices,
        core_slices=_core_slices(document, extents),
        inputs=tuple(read_tensor(document, i) for i in inputs),
        outputs=tuple(read_tensor(document, i) for i in outputs),
        index_tensors=tuple(read_tensor(document, i) for i in index_inputs),
        masks=_masks(document), constants=_constants(document, constants),
        constant_formats={c.name: c.data_format for c in constants.values()},
        data_format=_data_format(document, op, inputs or outputs), unit=given(op.unit, "sfp"),
        windows=_windows(document, extents),
        symbolic_dims=_symbolic_dims(document, extents, maxima),
        last_extents=_last_extents(document, extents, slices, maxima), origin=_origin(document),
    )  # fmt: skip
    if not operation.index_tensors:
        return operation
    return replace(
        operation,
        inputs=tuple(_single_index_outermost(operation, t) for t in operation.inputs),
        outputs=tuple(_single_index_outermost(operation, t) for t in operation.outputs),
    )


def _origin(document: SdscDocument) -> Origin:
    """The origin in ``debug_handle_``; parts of another form are left out."""
    handle = given(document.sdsc.body.debug_handle, None)
    if not isinstance(handle, dict):
        return Origin()
    chain = handle.get("ir_chain")
    first = chain[0] if isinstance(chain, list) and chain else ""
    names = (first, handle.get("aten_op"))
    return Origin(*(name if isinstance(name, str) else "" for name in names))


def _extents(document: SdscDocument) -> tuple[dict[str, int], dict[str, int]]:
    """N_ per dim, in file order, and the maxima of symbolic ones. Negative means an unused dim, or
    a symbolic one: its maximum.

    SdscError SPY251 when nothing is left to iterate over.
    """
    path = f"{document.dsc_path}.N_"
    entries = dim_entries(document.dsc.extents)
    extents = {dim: document.integer(value, f"{path}.{dim}_") for dim, value in entries.items()}
    maxima = {
        dim: _member(document, row, "maxSize_", f"{path}.{SYMBOLIC_KEY}.{dim}")
        for dim, row in _table(document, SYMBOLIC_KEY).items()
    }
    for dim, size in maxima.items():
        if extents.get(dim, 0) < 0:  # -1 in the text of the RFC; code writes the maximum itself
            extents[dim] = size
    used = {dim: extent for dim, extent in extents.items() if extent >= 0}
    if not used or 0 in used.values():
        expected = "at least one dim, every extent at least 1"
        found = ", ".join(f"{dim}={extent}" for dim, extent in used.items()) or "no dim"
        raise document.error("SPY251", "nothing to iterate over", path, expected, found)
    return used, maxima


def _table(document: SdscDocument, key: str) -> dict[str, Mapping[str, Any]]:
    """A nested table of N_ by dim; names may carry a trailing ``_``."""
    table, path = document.dsc.extents.get(key, {}), f"{document.dsc_path}.N_"
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        expected = "an object with an object per dim"
        raise document.error("SPY254", f"{key} is malformed", f"{path}.{key}", expected)
    # Names ending in "_" are the norm of the format, but tables inside of N_ are seen without.
    return {dim.removesuffix("_"): row for dim, row in table.items()}


def _member(document: SdscDocument, row: Mapping[str, Any], key: str, path: str) -> int:
    if key not in row:
        raise document.error("SPY254", f"{key} is missing", path, key, ", ".join(row) or "nothing")
    return document.integer(row[key], f"{path}.{key}")


# --- windows ----------------------------------------------------------------------------------


def _windows(document: SdscDocument, extents: Mapping[str, int]) -> dict[str, Window]:
    """Windows by spatial dim (``paddingSizes_``). SdscError SPY254, SPY222."""
    windows = {}
    for dim, row in _table(document, WINDOWS_KEY).items():
        place = f"{document.dsc_path}.N_.{WINDOWS_KEY}.{dim}"
        if dim not in extents:
            raise unknown_dim(document, dim, extents, place)
        windows[dim] = _window(document, row, extents, place)
    return windows


def _window(
    document: SdscDocument, row: Mapping[str, Any], extents: Mapping[str, int], path: str
) -> Window:
    members = {
        name: _member(document, row, key, path)
        for name, key in _WINDOW_FIELDS.items()
        if key in row or name == "total"
    }
    window_dim = str(row.get(_WINDOW_DIM, "")).removesuffix("_")
    if window_dim not in extents:
        raise unknown_dim(document, window_dim, extents, f"{path}.{_WINDOW_DIM}")
    return Window(window_dim, **members)


def window_table(windows: Mapping[str, Window]) -> dict[str, dict[str, Any]]:
    """The inverse of `_windows`, ``paddingSizes_``, where unneeded padding of 0 is omitted."""
    optional = {"unneeded", "unneeded_front", "unneeded_back"}
    return {
        dim: {
            **{
                key: getattr(window, name)
                for name, key in _WINDOW_FIELDS.items()
                if name not in optional or getattr(window, name)
            },
            _WINDOW_DIM: window.window_dim,
        }
        for dim, window in windows.items()
    }


# --- symbolic dims ----------------------------------------------------------------------------


def _symbolic_dims(
    document: SdscDocument, extents: Mapping[str, int], maxima: Mapping[str, int]
) -> dict[str, SymbolicDim]:
    """Symbolic dims by name, from ``dimToSymbolMapping_`` and ``symbolicDimInfo_``.

    SdscError SPY222, SPY258; UnsupportedError SPY515 for a dim of several symbols, and one that
    windows or a mask concern.
    """
    path = f"{document.dsc_path}.N_.{SYMBOLIC_KEY}"
    symbols = _dim_symbols(document, extents)
    if maxima.keys() != symbols.keys():
        message = "a symbolic dim needs a symbol and a maximum"
        expected = f"dims {', '.join(symbols) or 'none'} of dimToSymbolMapping_"
        raise document.error("SPY258", message, path, expected, ", ".join(maxima) or "none")
    if not symbols:
        return {}
    _refuse_mixed(document, symbols)
    table = _table(document, SYMBOLIC_KEY)
    tags = given(document.sdsc.body.symbol_tags, {})
    return {
        dim: SymbolicDim(
            symbols[dim],
            maxima[dim],
            _member(document, table[dim], "granularity_", f"{path}.{dim}"),
            tags.get(str(symbols[dim]), ""),
        )
        for dim in extents
        if dim in symbols
    }


def _refuse_mixed(document: SdscDocument, symbols: Mapping[str, int]) -> None:
    """Refuse windows and masks along dims of symbolic size, which the reference does not define."""
    path = f"{document.dsc_path}.N_"
    table = _table(document, WINDOWS_KEY)
    windowed = {str(row.get(_WINDOW_DIM, "")).removesuffix("_") for row in table.values()}
    masked = {dim for dim, ranges in given(document.dsc.masks, {}).items() if ranges}
    for dim in symbols:
        for dims, what in ((windowed | table.keys(), "under a window"), (masked, "with a mask")):
            if dim in dims:
                message = f"symbolic dim {dim} {what} is not simulated"
                raise document.unsupported("SPY515", message, f"{path}.{dim}_")


def _dim_symbols(document: SdscDocument, extents: Mapping[str, int]) -> dict[str, int]:
    """``dimToSymbolMapping_``: the one id per dim; empty lists mean no symbol."""
    symbols = {}
    for key, ids in given(document.dsc.dim_symbols, {}).items():
        dim, path = key.removesuffix("_"), f"{document.dsc_path}.dimToSymbolMapping_.{key}"
        if not ids:
            continue
        if dim not in extents:
            raise unknown_dim(document, dim, extents, path)
        if len(ids) > 1:
            message = f"dim {dim} with several symbols is not simulated"
            raise document.unsupported("SPY515", message, path)
        symbols[dim] = document.integer(ids[0], path)
    return symbols


# --- uneven work slices -----------------------------------------------------------------------


def _last_extents(
    document: SdscDocument,
    extents: Mapping[str, int],
    slices: Mapping[str, int],
    symbolic: Mapping[str, int],
) -> dict[str, int]:
    """Extent of the last work slice per dim whose ``el_`` differs from ``ss_``, which has no
    meaning for a symbolic dim.

    UnsupportedError SPY508 where the two are not those of slices of one length and a shorter last
    one: N = ss · (slices - 1) + el, 0 < el < ss.
    """
    last_extents: dict[str, int] = {}
    for key, stage in given(document.dsc.stages, {}).items():
        path = f"{document.dsc_path}.dataStageParam_.{key}.el_"
        steady, last = dim_entries(stage.steady), dim_entries(given(stage.epilogue, stage.steady))
        for dim in last.keys() & extents.keys():
            path_of_dim = f"{path}.{dim}_"
            if dim in symbolic:
                continue
            # el_ is the last slice, ss_ every other; where slices are even, files repeat ss_
            el = document.integer(last[dim], path_of_dim)
            ss = document.integer(steady.get(dim, last[dim]), f"{path}.{dim}_")
            if el == ss:
                continue
            count = slices[dim]
            if not 0 < el < ss or count < 2 or extents[dim] != ss * (count - 1) + el:
                message = f"a last step of {dim} that is no shorter last work slice"
                raise document.unsupported("SPY508", f"{message} is not simulated", path_of_dim)
            last_extents[dim] = el
    return last_extents


def _single_index_outermost(op: Operation, tensor: Tensor) -> Tensor:
    """Move the dims of a single page index outermost in the value tensor (§6.4).

    The compiler lists such a dim of extent 1 at any position. One step of its index skips the
    elements of all other dims, as torch-spyre's tests of paged caches show.
    """
    if tensor.device_dim_sizes:
        return tensor
    single = [
        dim
        for dim in indexed_dims(op, tensor)
        if op.extents[dim] == 1 and tensor.max_dim_sizes.get(dim) == 1
    ]
    others = [dim for dim in tensor.dims if dim not in single]
    return replace(tensor, dims=(*others, *single))


# --- the DSC as a whole -----------------------------------------------------------------------


def _compute_op(document: SdscDocument) -> ComputeOp:
    if not document.dsc.compute_ops:
        path = f"{document.dsc_path}.computeOp_"
        raise document.error("SPY207", "the DSC has no compute op", path, "one entry")
    return document.dsc.compute_ops[0]


def _slices(document: SdscDocument, extents: Mapping[str, int]) -> dict[str, int]:
    path = f"{document.path}.numWkSlicesPerDim_"
    table = given(document.sdsc.body.slices, {})
    for dim in table.keys() - extents.keys():
        raise unknown_dim(document, dim, extents, f"{path}.{dim}")
    return {dim: document.integer(table.get(dim, 1), f"{path}.{dim}") for dim in extents}


def _core_slices(
    document: SdscDocument, extents: Mapping[str, int]
) -> tuple[Mapping[str, int], ...]:
    """Slice index per dim, for every used core in order; all 0 when the table is absent."""
    table = document.sdsc.body.core_slices
    path = f"{document.path}.coreIdToWkSlice_"
    if isinstance(table, UnsetType):
        return tuple(dict.fromkeys(extents, 0) for _ in document.cores)
    return read_core_slices(document, table, extents, path)


def _masks(document: SdscDocument) -> dict[str, tuple[tuple[int, int], ...]]:
    path = f"{document.dsc_path}.coordinateMasking_"
    masks = {}
    for dim, ranges in given(document.dsc.masks, {}).items():
        for index, entry in enumerate(ranges):
            if len(entry) != 2:
                place, found = f"{path}.{dim}[{index}]", f"{len(entry)} numbers"
                raise document.error("SPY237", "malformed mask", place, "[start, count]", found)
        if ranges:
            masks[dim] = tuple(
                (document.integer(start, path), document.integer(count, path))
                for start, count in ranges
            )
    return masks


# --- constants --------------------------------------------------------------------------------


def _constant_table(document: SdscDocument) -> Mapping[str, ConstantInfo]:
    """``constantInfo_``; the text "{}" means none."""
    table = document.dsc.constants
    if isinstance(table, dict):
        return table
    if isinstance(table, str) and table.strip() != "{}":
        path = f"{document.dsc_path}.constantInfo_"
        expected = 'an object, or the text "{}"'
        raise document.error("SPY240", "constants cannot be read", path, expected, table[:60])
    return {}


def _constants(document: SdscDocument, table: Mapping[str, ConstantInfo]) -> dict[str, int]:
    constants: dict[str, int] = {}
    for key, constant in table.items():
        path = f"{document.dsc_path}.constantInfo_.{key}"
        if constant.name in constants:
            message = f"constant {constant.name} is given twice"
            raise document.error("SPY240", message, f"{path}.name_", "distinct names")
        constants[constant.name] = _bit_pattern(document, constant, path)
    return constants


def _bit_pattern(document: SdscDocument, constant: ConstantInfo, path: str) -> int:
    values = list(given(constant.data.data, {}).values())
    if not values:
        raise document.error("SPY240", f"constant {constant.name} has no value", f"{path}.data_")
    if any(value != values[0] for value in values):
        message = f"constant {constant.name} differs between cores: not simulated"
        raise document.unsupported("SPY511", message, f"{path}.data_.data_")
    value = values[0]
    if isinstance(value, tuple):  # [bits], as a number or as text (sdsc.md §8)
        if len(value) != 1:
            expected, found = "a list of one bit pattern", f"{len(value)} entries"
            message = f"constant {constant.name} is malformed"
            raise document.error("SPY240", message, f"{path}.data_.data_", expected, found)
        value = value[0]
    return int(value) if isinstance(value, bool) else document.integer(value, f"{path}.data_.data_")


def _data_format(document: SdscDocument, op: ComputeOp, operands: tuple[int, ...]) -> str:
    """Execution format: the op's attribute, else that of the first operand."""
    if not isinstance(op.attributes, UnsetType):
        return op.attributes.data_format
    return document.dsc.tensors[operands[0]].data_format


# --- operands ---------------------------------------------------------------------------------


def _operand_indices(
    document: SdscDocument, op: ComputeOp
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Indices of inputs, index tensors and outputs.

    Reductions list their output among the inputs (real-bundles.md); it is not read.
    """
    path = f"{document.dsc_path}.computeOp_[0]"
    if not op.outputs:
        raise document.error("SPY250", "the operation has no output", f"{path}.outputLabeledDs")
    outputs = _resolve(document, op.outputs, f"{path}.outputLabeledDs")
    index_names = given(op.index_inputs, ())
    index_inputs = _resolve(document, index_names, f"{path}.indirectAccessIndexLabeledDs")
    # Real files keep index tensors out of the inputs; who lists them twice means them once.
    listed = _resolve(document, op.inputs, f"{path}.inputLabeledDs")
    inputs = tuple(i for i in listed if i not in outputs and i not in index_inputs)
    return inputs, index_inputs, outputs


def _resolve(document: SdscDocument, names: tuple[str, ...], path: str) -> tuple[int, ...]:
    return tuple(_tensor_index(document, name, f"{path}[{i}]") for i, name in enumerate(names))


def _tensor_index(document: SdscDocument, name: str, path: str) -> int:
    """``"Tensor0-idx0"`` → 0: the name and, after the last '-', the index of a tensor."""
    tensors = document.dsc.tensors
    # The index counts positions of labeledDs_, not ldsIdx_ (SPY217 checks that they agree).
    label, _, suffix = name.rpartition("-")
    digits = suffix[3:]
    if suffix[:3] == "idx" and digits.isdecimal() and len(digits) < 4:
        index = int(digits)
        if index < len(tensors) and tensors[index].name == label:
            return index
    known = ", ".join(f"{t.name}-idx{t.index}" for t in tensors)
    raise document.error("SPY218", f"no tensor is called {name}", path, f"one of {known}", name)
