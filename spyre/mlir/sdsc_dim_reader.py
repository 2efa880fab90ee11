"""The tables of ``N_`` beside the extents: windows, symbolic dims, and uneven last work slices.

:mod:`.sdsc_reader` puts them into the :class:`Operation`. Raises SdscError and UnsupportedError
with JSON paths; what only contradicts itself is left to :mod:`.sdsc_dim_rules`. Rules: SuperDSC
reference §3, §11 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spyre.mlir.operation import SymbolicDim, Window
from spyre.mlir.sdsc_reading import Reading, unknown_dim
from spyre.mlir.sdsc_structs import Dims, given
from spyre.mlir.sdsc_support import dim_entries

WINDOWS_KEY = "paddingSizes_"
SYMBOLIC_KEY = "symbolicDimInfo_"
_WINDOW_DIM = "windowDim_"
_WINDOW_FIELDS = {
    "total": "totalSize_",
    "stride": "stride_",
    "dilation": "dilation_",
    "pad_front": "padFront_",
    "pad_back": "padBack_",
    "unneeded": "unneededPad_",
    "unneeded_front": "unneededPadFront_",
    "unneeded_back": "unneededPadBack_",
}
"""Members of a window and their keys; only the first has to be there."""


def read_extents(reading: Reading) -> dict[str, int]:
    """N_ per dim, in file order. Negative means an unused dim, or a symbolic one: its maximum.

    SdscError SPY251 when nothing is left to iterate over.
    """
    path = f"{reading.dsc_path}.N_"
    entries = dim_entries(reading.dsc.extents)
    extents = {dim: reading.integer(value, f"{path}.{dim}_") for dim, value in entries.items()}
    for dim, size in _maxima(reading).items():
        if extents.get(dim, 0) < 0:
            extents[dim] = size
    used = {dim: extent for dim, extent in extents.items() if extent >= 0}
    if not used or 0 in used.values():
        expected = "at least one dim, every extent at least 1"
        found = ", ".join(f"{dim}={extent}" for dim, extent in used.items()) or "no dim"
        raise reading.error("SPY251", "nothing to iterate over", path, expected, found)
    return used


def _table(reading: Reading, dims: Dims, key: str, path: str) -> dict[str, Mapping[str, Any]]:
    """A nested table of a DataStructDims object by dim; names may carry a trailing ``_``."""
    table = dims.get(key, {})
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        expected = "an object with an object per dim"
        raise reading.error("SPY254", f"{key} is malformed", f"{path}.{key}", expected)
    return {dim.removesuffix("_"): row for dim, row in table.items()}


def _member(reading: Reading, row: Mapping[str, Any], key: str, path: str) -> int:
    if key not in row:
        raise reading.error("SPY254", f"{key} is missing", path, key, ", ".join(row) or "nothing")
    return reading.integer(row[key], f"{path}.{key}")


# --- windows ----------------------------------------------------------------------------------


def read_windows(reading: Reading, extents: Mapping[str, int]) -> dict[str, Window]:
    """Windows by spatial dim (``paddingSizes_``). SdscError SPY254, SPY222."""
    path = f"{reading.dsc_path}.N_"
    table = _table(reading, reading.dsc.extents, WINDOWS_KEY, path)
    windows = {}
    for dim, row in table.items():
        place = f"{path}.{WINDOWS_KEY}.{dim}"
        if dim not in extents:
            raise unknown_dim(reading, dim, extents, place)
        windows[dim] = _window(reading, row, extents, place)
    return windows


def _window(
    reading: Reading, row: Mapping[str, Any], extents: Mapping[str, int], path: str
) -> Window:
    members = {
        name: _member(reading, row, key, path)
        for name, key in _WINDOW_FIELDS.items()
        if key in row or name == "total"
    }
    window_dim = str(row.get(_WINDOW_DIM, "")).removesuffix("_")
    if window_dim not in extents:
        raise unknown_dim(reading, window_dim, extents, f"{path}.{_WINDOW_DIM}")
    return Window(window_dim, **members)


def window_table(windows: Mapping[str, Window]) -> dict[str, dict[str, Any]]:
    """The ``paddingSizes_`` of windows: the inverse of `read_windows`. Absent padding that nobody
    needs is not written.
    """
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


def _maxima(reading: Reading) -> dict[str, int]:
    path = f"{reading.dsc_path}.N_"
    table = _table(reading, reading.dsc.extents, SYMBOLIC_KEY, path)
    return {
        dim: _member(reading, row, "maxSize_", f"{path}.{SYMBOLIC_KEY}.{dim}")
        for dim, row in table.items()
    }


def read_symbolic_dims(reading: Reading, extents: Mapping[str, int]) -> dict[str, SymbolicDim]:
    """Symbolic dims by name, from ``dimToSymbolMapping_`` and ``symbolicDimInfo_``.

    SdscError SPY222, SPY258; UnsupportedError SPY515 for a dim of several symbols, and one that
    windows or a mask concern.
    """
    path = f"{reading.dsc_path}.N_.{SYMBOLIC_KEY}"
    maxima = _maxima(reading)
    table = _table(reading, reading.dsc.extents, SYMBOLIC_KEY, f"{reading.dsc_path}.N_")
    symbols = _dim_symbols(reading, extents)
    if maxima.keys() != symbols.keys():
        message = "a symbolic dim needs a symbol and a maximum"
        expected = f"dims {', '.join(symbols) or 'none'} of dimToSymbolMapping_"
        raise reading.error("SPY258", message, path, expected, ", ".join(maxima) or "none")
    _refuse_mixed(reading, symbols)
    tags = given(reading.sdsc.body.symbol_tags, {})
    return {
        dim: SymbolicDim(
            symbols[dim],
            maxima[dim],
            _member(reading, table[dim], "granularity_", f"{path}.{dim}"),
            tags.get(str(symbols[dim]), ""),
        )
        for dim in extents
        if dim in symbols
    }


def _refuse_mixed(reading: Reading, symbols: Mapping[str, int]) -> None:
    """What the reference does not define for a size that changes."""
    path = f"{reading.dsc_path}.N_"
    table = _table(reading, reading.dsc.extents, WINDOWS_KEY, path)
    windowed = {str(row.get(_WINDOW_DIM, "")).removesuffix("_") for row in table.values()}
    masked = {dim for dim, ranges in given(reading.dsc.masks, {}).items() if ranges}
    for dim in symbols:
        for dims, what in ((windowed | table.keys(), "under a window"), (masked, "with a mask")):
            if dim in dims:
                message = f"symbolic dim {dim} {what} is not simulated"
                raise reading.unsupported("SPY515", message, f"{path}.{dim}_")


def _dim_symbols(reading: Reading, extents: Mapping[str, int]) -> dict[str, int]:
    """``dimToSymbolMapping_``: the one id per dim; empty lists mean no symbol."""
    symbols = {}
    for key, ids in given(reading.dsc.dim_symbols, {}).items():
        dim, path = key.removesuffix("_"), f"{reading.dsc_path}.dimToSymbolMapping_.{key}"
        if not ids:
            continue
        if dim not in extents:
            raise unknown_dim(reading, dim, extents, path)
        if len(ids) > 1:
            message = f"dim {dim} with several symbols is not simulated"
            raise reading.unsupported("SPY515", message, path)
        symbols[dim] = reading.integer(ids[0], path)
    return symbols


# --- uneven work slices -----------------------------------------------------------------------


def read_last_extents(
    reading: Reading, extents: Mapping[str, int], slices: Mapping[str, int]
) -> dict[str, int]:
    """Extent of the last work slice per dim whose ``el_`` differs from ``ss_``, which has no
    meaning for a symbolic dim.

    UnsupportedError SPY508 where the two are not those of slices of one length and a shorter last
    one: N = ss · (slices - 1) + el, 0 < el < ss.
    """
    found: dict[str, int] = {}
    symbolic = _maxima(reading)
    for key, stage in given(reading.dsc.stages, {}).items():
        path = f"{reading.dsc_path}.dataStageParam_.{key}.el_"
        steady, last = dim_entries(stage.steady), dim_entries(given(stage.epilogue, stage.steady))
        for dim in last.keys() & extents.keys():
            place = f"{path}.{dim}_"
            if dim in symbolic:
                continue
            el = reading.integer(last[dim], place)
            ss = reading.integer(steady.get(dim, last[dim]), f"{path}.{dim}_")
            if el == ss:
                continue
            count = slices[dim]
            if not 0 < el < ss or count < 2 or extents[dim] != ss * (count - 1) + el:
                message = f"a last step of {dim} that is no shorter last work slice"
                raise reading.unsupported("SPY508", f"{message} is not simulated", place)
            found[dim] = el
    return found
