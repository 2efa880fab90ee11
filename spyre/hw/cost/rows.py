"""Rows of kernels, measured or not, and their operation counts.

A row is a line of a CSV file with columns ``kernel``, ``shapes``, ``dtype``, ``split``, ``cores``
and perhaps ``microseconds``; ``measured_rows.csv`` holds those that the shipped machine is fitted
on. Tensors are in default layouts, in HBM unless the note of a row has another place.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from spyre.codes import diagnostic_codes
from spyre.errors import EstimateError, Finding, JsonLocation
from spyre.files import read_regular
from spyre.hw.cost.divisions import candidates_of, product_counts
from spyre.hw.counters import CostClass, Counters, OperationCounts, ProductShape
from spyre.hw.spec import STICK_BYTES

NEEDED = ("kernel", "shapes", "dtype", "split", "cores")
DTYPES: Mapping[str, tuple[float, str]] = {
    **dict.fromkeys(("", "fp16", "float16", "bf16", "bfloat16", "dl16"), (2, "SEN169_FP16")),
    **dict.fromkeys(("fp32", "float32"), (4, "IEEE_FP32")),
    **dict.fromkeys(("fp8", "float8"), (1, "SEN143_FP8")),
    "int8": (1, "SENINT8"),
    "int4": (0.5, "SENINT4"),
}
"""Bytes of an element and the device's format, by the first word of ``dtype``."""
MOVES = {"copy to host": "copy", "rest of device time, follows output bytes": "copy"}
MOVES |= {"memset": "memset", "memset of the output": "memset"}
"""Rows that are no kernels, whose time goes by the bytes: field of `Spread`."""
Counts = tuple[OperationCounts, ...]
Split = Mapping[str, int]  # cores among which the dims of a product are divided: b, m, n, k


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel of a file. ``cells``: the columns as written; ``line``: the first row is 1.

    ``shape``: extents, the last in the stick dim; ``sizes``: of a product by name (B, M, N, K).
    ``split``: None where the file does not say. ``us``: measured, microseconds; ``lx_fraction``:
    None if not stated; ``tiles``: trips of a loop over rows; ``dtype``: the column's first word.
    ``finding``: why the row cannot be used.
    """

    cells: Mapping[str, str]
    file: str
    line: int
    shape: tuple[int, ...] = ()
    sizes: Mapping[str, int] | None = None
    cores: int = 32
    split: Split | None = None
    us: float | None = None
    lx_fraction: float | None = None
    dtype: str = ""
    tiles: int = 1
    finding: Finding | None = None

    @property
    def kernel(self) -> str:
        """The column."""
        return self.cells.get("kernel", "")

    @property
    def note(self) -> str:
        """All that the row says beside its kernel, such as ``outlier``: no test of a model."""
        return " ".join(self.cells.get(name, "") for name in ("what_is_measured", "note"))

    @property
    def title(self) -> str:
        """Name, extents and division."""
        return " ".join(filter(None, (self.cells[name] for name in ("kernel", "shapes", "split"))))

    def wrong(self, code: str, column: str, expected: str) -> NoReturn:
        """Raise EstimateError for a cell."""
        place = JsonLocation(self.file, f"row {self.line}, column {column}")
        message, found = diagnostic_codes()[code].title, repr(self.cells.get(column))
        raise EstimateError(code, message, place, expected=expected, found=found)


@cache
def measured_rows() -> tuple[KernelRow, ...]:
    """The rows that the shipped machine is fitted on."""
    path = resources.files("spyre.hw.cost").joinpath("measured_rows.csv")
    return tuple(parse_rows(path.read_text(encoding="utf-8"), "measured_rows.csv"))


def read_rows(path: str | Path) -> tuple[KernelRow, ...]:
    """The rows of a file, in its order; a wrong one has its finding (SPY764 to SPY766).

    Raises EstimateError SPY763 for a file that cannot be read.
    """
    try:
        return tuple(parse_rows(read_regular(path).decode("utf-8-sig"), str(path)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = "a file of kernels cannot be read"
        raise EstimateError("SPY763", message, JsonLocation(str(path)), found=str(error)) from error


def parse_rows(text: str, file: str) -> Iterator[KernelRow]:
    """The rows of a CSV text; lines that begin with # are comments."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    for number, cells in enumerate(csv.DictReader(lines), 1):
        # surplus cells are under None, missing ones are None
        stated = {name.strip(): text.strip() for name, text in cells.items() if name and text}
        row = KernelRow(dict.fromkeys(filter(None, cells), "") | stated, file, number)
        try:
            missing = next((name for name in NEEDED if cells.get(name) is None), None)
            if missing:
                row.wrong("SPY766", missing, f"columns {', '.join(NEEDED)}")
            yield _parsed(row)
        except EstimateError as error:
            yield replace(row, finding=error.finding)


def _parsed(row: KernelRow) -> KernelRow:
    shapes = row.cells["shapes"]
    sizes = {name: int(size) for name, size in re.findall(r"\b([BMNK])(\d+)\b", shapes)}
    is_product = bool({*"MNK"} & sizes.keys())
    if not is_product and row.kernel not in MOVES and not operations_of(row):
        row.wrong("SPY764", "kernel", f"a product (M, N, K), or one of {', '.join(_KERNELS)}, add3")
    shape = tuple(map(int, re.findall(r"\d+", shapes.partition(" ")[0])))
    fits = {*"MNK"} <= sizes.keys() if is_product else len(shape) > (row.kernel not in MOVES)
    if not fits or 0 in (*shape, *sizes.values()):
        row.wrong("SPY765", "shapes", "extents such as 2048x4096, or M512 N4096 K4096")
    dtype = row.cells["dtype"].partition(" ")[0]
    if dtype not in DTYPES:
        row.wrong("SPY765", "dtype", ", ".join(filter(None, DTYPES)))
    stated = re.search(r"LX fraction (?:about )?(\d*\.?\d+)", row.note)
    tiles = re.search(r"(\d+) row tiles|tiles(\d+)", f"{row.note} {row.kernel}")
    row = replace(
        row,
        dtype=dtype,
        tiles=int(tiles[1] or tiles[2]) if tiles else 1,
        shape=shape,
        sizes=sizes if is_product else None,
        us=_number(row, "microseconds"),
        lx_fraction=_number(row, "lx_fraction") or (float(stated[1]) if stated else None),
        cores=int(_number(row, "cores", 32) or 32),
    )
    return replace(row, split=_split(row))


def _number(row: KernelRow, column: str, most: int = 0) -> float | None:
    """The number in a cell, whole and at most ``most`` if that is not 0; None if it is empty."""
    text = row.cells.get(column)
    if not text:
        return None
    is_number = re.fullmatch(r"\d+" if most else r"\d*\.?\d+(e[+-]?\d+)?|\d+\.", text)
    if not is_number or float(text) == 0 or (most and int(text) > most):
        row.wrong("SPY765", column, f"a number above 0{f', at most {most}' if most else ''}")
    return float(text)


def _split(row: KernelRow) -> Split | None:
    """The division of a product: None where the column leaves it to a compiler."""
    text = row.cells["split"]
    if row.sizes is None or not text or re.search("unknown|compiler|core", text):
        return None
    split = {name: int(cores) for name, cores in re.findall(r"\b([bmnk])(\d+)\b", text)}
    rest = re.sub(r"\b[bmnk]\d+\b|assumed|[ ,]", "", text)
    sizes = {"b": 1} | {name.lower(): size for name, size in row.sizes.items()}
    fits = all(0 < cores <= sizes[name] for name, cores in split.items())
    if rest or not split or not fits or prod(split.values()) > row.cores:
        row.wrong("SPY765", "split", f"cores per dim such as m4 n8, together at most {row.cores}")
    return split


# --- counts -----------------------------------------------------------------------------------


def counts_of(row: KernelRow) -> Iterator[tuple[Split | None, Counts]]:
    """The operations of a kernel, for every division that it may have."""
    if row.sizes is None:
        yield None, tuple(_operation(row, *each) for each in operations_of(row))
    elif row.split is not None:
        yield row.split, _product(row, row.sizes, row.split)
    else:
        m, k, n = (row.sizes[dim] for dim in "MKN")
        shape = ProductShape(m=m, k=k, n=n, batch=row.sizes.get("B", 1))
        for cores in candidates_of(shape, row.cores):
            split = dict(zip("bmnk", cores, strict=True))
            yield split, _product(row, row.sizes, split)


Operation = tuple[str, str]
"""Letters of :data:`_CLASSES`, and tensors of the row's size that it reads and writes in HBM, and
in LX."""
_CLASSES = {
    "p": CostClass.POINTWISE,
    "b": CostClass.BROADCAST,
    "r": CostClass.ROW_REDUCTION,
    "c": CostClass.COLUMN_REDUCTION,
    "t": CostClass.TRANSPOSE,
    "x": CostClass.CONCATENATION,
}
"""Further letters: ``e`` a function like exp, ``s`` a scalar operand, ``w`` writes its
sums, ``a`` only one."""
_KERNELS: Mapping[str, tuple[Operation, ...]] = {
    **dict.fromkeys(("neg", "abs", "relu", "sqrt", "copy", "mul by 2.0"), (("p", "1100"),)),
    "transpose_outer": (("p", "1100"),),  # sticks are copied
    **dict.fromkeys(("exp", "log", "gelu", "silu", "sigmoid", "tanh"), (("pe", "1100"),)),
    "add_const": (("ps", "1100"),),
    **dict.fromkeys(("add", "sub", "mul", "div"), (("p", "2100"),)),
    "add_indep2": (("p", "2100"), ("p", "2100")),
    # the vector's own bytes are left out
    **dict.fromkeys(("bcast", "bcastcol", "mulbcast", "row_add"), (("b", "1100"),)),
    "write": (("b", "0100"),),  # the outer sum of two vectors
    # a tensor twice, read once: along dim 0 it is written to a part of every plane of sticks
    **dict.fromkeys(("cat0", "cat_dim0"), (("x", "1200"),)),
    **dict.fromkeys(("cat1", "cat_dim1"), (("p", "1200"),)),
    **dict.fromkeys(("amax", "max", "sum", "sumrow", "sum_row", "mean", "read"), (("rw", "1000"),)),
    **dict.fromkeys(("sumcol", "sum_col"), (("cw", "1000"),)),
    **dict.fromkeys(("sumall", "sum_all"), (("raw", "1000"),)),
    **dict.fromkeys(("transpose", "restickify"), (("t", "1100"),)),
    "softmax": (("r", "1000"), ("p", "1100"), ("pe", "1100"), ("r", "1000"), ("p", "1100")),
}
_IN_LX: Mapping[str, tuple[Operation, ...]] = {
    "softmax": (
        *(("p", "1001"), ("r", "0010"), ("p", "0011"), ("pe", "0011"), ("r", "0010")),
        ("p", "0110"),
    )
}
"""Operations of kernels, with intermediate tensors in HBM and in LX."""
LX_TILE_BYTES = 1_677_721
"""Usable bytes of a core's LX (torch-spyre, config.py); a larger tile of softmax stays in HBM."""


def operations_of(row: KernelRow) -> tuple[Operation, ...]:
    """Operations of a kernel that is no product; none of an unknown one."""
    in_lx = re.search("LX planning on|production compiler|row tiles", row.note)
    name = re.sub(r"_tiles\d+$", "", row.kernel.lower())
    chain = re.fullmatch(r"add([3-9])", name)
    if chain and in_lx:
        return (("p", "2001"), *(("p", "1011"),) * (int(chain[1]) - 3), ("p", "1110"))
    if chain:
        return (("p", "2100"),) * (int(chain[1]) - 1)
    tile_bytes = prod(row.shape) * 2 / (row.tiles * row.cores)
    fits = in_lx and tile_bytes <= LX_TILE_BYTES
    return (_IN_LX if fits and name in _IN_LX else _KERNELS).get(name, ())


def _operation(row: KernelRow, letters: str, moved: str) -> OperationCounts:
    rows, columns, element_bytes = prod(row.shape[:-1]), row.shape[-1], DTYPES[row.dtype][0]
    names = ("rdmem_bytes", "wrmem_bytes", "lx_read_bytes", "lx_written_bytes")
    size_bytes = int(rows * columns * element_bytes)
    traffic = {name: int(count) * size_bytes for name, count in zip(names, moved, strict=True)}
    if "w" in letters:  # a stick per row is left, a row of sums, or one stick
        sums = {"rw": rows, "cw": -(-columns * 2 // STICK_BYTES)}.get(letters, 1)
        traffic["wrmem_bytes"] = sums * STICK_BYTES
    return OperationCounts(
        name=row.kernel,
        cost_class=_CLASSES[letters[0]],
        cores=row.cores,
        counters=Counters(**traffic, element_operations=rows * columns, executions=row.tiles),
        rows=rows // row.tiles,
        columns=columns,
        transcendental="e" in letters,
        scalar_operand="s" in letters,
        reads=frozenset({0, 1} if moved[0] == "2" and row.sizes is None else ()),
        # in a chain (add3) the result is an operand of the next one
        writes=frozenset({0} if moved[1] == "1" and row.kernel[3:4].isdigit() else ()),
    )


def _product(row: KernelRow, sizes: Mapping[str, int], split: Split) -> Counts:
    """Return a product; before one of scaled 8-bit operands, the conversion of the first operand
    from 16 bits, and a change of its layout unless that goes over LX.
    """
    words = f"{row.kernel} {row.cells['dtype']}"
    before: Counts = ()
    if row.dtype == "fp8" and re.search("scaled|baseline|relayout", words):
        shape = (sizes["M"] * sizes.get("B", 1), sizes["K"])
        first = replace(row, shape=shape)
        convert, lay_out = _operation(first, "p", "2100"), _operation(first, "t", "2200")
        before = (convert,) if "over LX" in words else (convert, lay_out)
    return (*before, _product_operation(row, sizes, split))


def _product_operation(row: KernelRow, sizes: Mapping[str, int], split: Split) -> OperationCounts:
    """The reduced dim is padded to whole sticks; every trip of a loop over rows reads the second
    operand again. ``3d2d``: that has no batch. Batches are interleaved in the default layout; a row
    may give that of an operand (``A:batch``).
    """
    depth, shared = -(-sizes["K"] // 64) * 64, "3d2d" in row.kernel
    batch, m, n = sizes.get("B", 1), sizes["M"], sizes["N"]
    a, b, c = (batch > 1 and f"{operand}:batch" not in row.kernel for operand in "ABC")
    names = {"b": "batch_cores", "m": "m_cores", "n": "n_cores", "k": "k_cores"}
    cores: dict[str, Any] = {names[dim]: count for dim, count in split.items()}
    shape = ProductShape(m=m // row.tiles, k=depth, n=n, batch=batch, shared=shared, **cores)
    shape = replace(shape, interleaved=(a, b and not shared, c))
    return product_counts(shape, DTYPES[row.dtype][1], row.kernel, row.tiles)
