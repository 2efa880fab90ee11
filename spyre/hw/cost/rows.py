"""Rows of kernels, measured or not, and their operation counts.

A row is a line of a CSV file with columns ``kernel``, ``shapes``, ``dtype``, ``split``, ``cores``
and perhaps ``microseconds``; ``measured_rows.csv`` holds those that the shipped machine is fitted
on, ``kernels.toml`` the operations of kernels by name. Tensors are in default layouts, in HBM
unless the note of a row has another place.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec
from msgspec.structs import replace

from spyre.codes import diagnostic_codes
from spyre.dtypes import FORMATS
from spyre.errors import EstimateError, Finding, JsonLocation
from spyre.files import read_regular
from spyre.hw.cost.divisions import candidates_of, product_counts
from spyre.hw.cost.machine import default_machine
from spyre.hw.counters import CostClass, Counters, OperationCounts, ProductShape
from spyre.hw.spec import CORES, STICK_BYTES

NEEDED = ("kernel", "shapes", "dtype", "split", "cores")
DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("", "fp16", "float16", "bf16", "bfloat16", "dl16"), "SEN169_FP16"),
    **dict.fromkeys(("fp32", "float32"), "IEEE_FP32"),
    **dict.fromkeys(("fp8", "float8"), "SEN143_FP8"),
    "int8": "SENINT8",
    "int4": "SENINT4",
}
"""The device's format by the first word of ``dtype``."""
MOVES = (CostClass.COPY_OUT, CostClass.MEMSET)
"""Classes of rows whose shapes are bytes."""
Counts = tuple[OperationCounts, ...]
Split = Mapping[str, int]  # cores among which the dims of a product are divided: b, m, n, k


class RowOperation(msgspec.Struct, frozen=True):
    """One operation of a kernel. ``hbm``, ``lx``: how many tensors of the row's size it reads and
    writes there; ``sums``: the result of a reduction: a stick per row, a row, or one stick.
    """

    kind: CostClass
    hbm: tuple[int, int] = (0, 0)
    lx: tuple[int, int] = (0, 0)
    transcendental: bool = False
    scalar_operand: bool = False
    sums: Literal["", "row", "column", "all"] = ""


Operations = tuple[RowOperation, ...]


class _NamedKernels(msgspec.Struct):
    names: list[str]
    operations: Operations
    in_lx: Operations = ()


@cache
def _named_kernels() -> Mapping[str, _NamedKernels]:
    text = resources.files("spyre.hw.cost").joinpath("kernels.toml").read_text(encoding="utf-8")
    tables = msgspec.convert(tomllib.loads(text)["kernels"], list[_NamedKernels])
    return {name: table for table in tables for name in table.names}


class KernelRow(msgspec.Struct, frozen=True):
    """One kernel of a file. ``cells``: the columns as written; ``line``: the first row is 1.

    ``shape``: extents, the last in the stick dim, or bytes; ``sizes``: of a product by name (B, M,
    N, K). ``split``: None where the file has none. ``us``: measured, microseconds;
    ``lx_fraction``: None if not stated; ``tiles``: trips of a loop over rows; ``dtype``: the
    column's first word. ``finding``: why the row cannot be used.
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
        """Return the row's remarks, such as ``outlier``: it is no test of a model."""
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
    shapes, operations = row.cells["shapes"], operations_of(row)
    sizes = {name: int(size) for name, size in re.findall(r"\b([BMNK])(\d+)\b", shapes)}
    is_product = bool({*"MNK"} & sizes.keys())
    if not is_product and not operations:
        known = ", ".join(_named_kernels())
        row.wrong("SPY764", "kernel", f"a product (M, N, K), or one of {known}, add3")
    shape = tuple(map(int, re.findall(r"\d+", shapes.partition(" ")[0])))
    least = 1 if operations and operations[0].kind in MOVES else 2
    fits = {*"MNK"} <= sizes.keys() if is_product else len(shape) >= least
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
        cores=int(_number(row, "cores", CORES) or CORES),
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
        yield None, tuple(_operation(row, each) for each in operations_of(row))
    elif row.split is not None:
        yield row.split, _product(row, row.sizes, row.split)
    else:
        m, k, n = (row.sizes[dim] for dim in "MKN")
        shape = ProductShape(m=m, k=k, n=n, batch=row.sizes.get("B", 1))
        for cores in candidates_of(shape, row.cores):
            split = dict(zip("bmnk", cores, strict=True))
            yield split, _product(row, row.sizes, split)


def operations_of(row: KernelRow) -> Operations:
    """Operations of a kernel that is no product; none of an unknown one."""
    in_lx = re.search("LX planning on|production compiler|row tiles", row.note)
    name = re.sub(r"_tiles\d+$", "", row.kernel.lower())
    if chain := re.fullmatch(r"add([3-9])", name):
        count = int(chain[1]) - 1
        ends = ((2, 0), (0, 1)), ((1, 1), (1, 0))  # in HBM and in LX, of the first and the last
        inner = [((1, 0), (1, 1))] * (count - 2)
        moved = [ends[0], *inner, ends[1]] if in_lx else [((2, 1), (0, 0))] * count
        return tuple(RowOperation(CostClass.POINTWISE, *each) for each in moved)
    if (kernel := _named_kernels().get(name)) is None:
        return ()
    tile_bytes = prod(row.shape) * 2 / (row.tiles * row.cores)
    fits = in_lx and tile_bytes <= default_machine().hardware.lx_planner_bytes
    return (fits and kernel.in_lx) or kernel.operations


def _operation(row: KernelRow, operation: RowOperation) -> OperationCounts:
    rows, columns = prod(row.shape[:-1]), row.shape[-1]
    is_move = operation.kind in MOVES
    size_bytes = rows * columns * (8 if is_move else FORMATS[DTYPES[row.dtype]].bits) // 8
    names = ("rdmem_bytes", "wrmem_bytes", "lx_read_bytes", "lx_written_bytes")
    moved = zip(names, (*operation.hbm, *operation.lx), strict=True)
    traffic = {name: count * size_bytes for name, count in moved}
    if operation.sums:
        sticks = {"row": rows, "column": -(-columns * 2 // STICK_BYTES)}.get(operation.sums, 1)
        traffic["wrmem_bytes"] = sticks * STICK_BYTES
    points = 0 if is_move else rows * columns
    return OperationCounts(
        name=row.kernel,
        cost_class=operation.kind,
        cores=row.cores,
        counters=Counters(**traffic, element_operations=points, executions=row.tiles),
        rows=rows // row.tiles,
        columns=columns,
        transcendental=operation.transcendental,
        scalar_operand=operation.scalar_operand,
        reads={0: size_bytes, 1: size_bytes} if operation.hbm[0] == 2 and not row.sizes else {},
        # in a chain (add3) the result is an operand of the next one
        writes={0: size_bytes} if operation.hbm[1] == 1 and row.kernel[3:4].isdigit() else {},
    )


def _product(row: KernelRow, sizes: Mapping[str, int], split: Split) -> Counts:
    """Return a product; before one of scaled 8-bit operands, the conversion of the first operand
    from 16 bits, and a change of its layout unless that goes over LX.

    The reduced dim is padded to whole sticks; every trip of a loop over rows reads the second
    operand again. ``3d2d``: that has no batch. Batches are interleaved in the default layout; a row
    may give that of an operand (``A:batch``).
    """
    words = f"{row.kernel} {row.cells['dtype']}"
    before: Counts = ()
    batch, m, n, depth = sizes.get("B", 1), sizes["M"], sizes["N"], -(-sizes["K"] // 64) * 64
    if row.dtype == "fp8" and re.search("scaled|baseline|relayout", words):
        first = replace(row, shape=(m * batch, sizes["K"]))
        changes = [RowOperation(CostClass.POINTWISE, (2, 1))]
        changes += [] if "over LX" in words else [RowOperation(CostClass.TRANSPOSE, (2, 2))]
        before = tuple(_operation(first, each) for each in changes)
    a, b, c = (batch > 1 and f"{operand}:batch" not in row.kernel for operand in "ABC")
    shared = "3d2d" in row.kernel
    names = {"b": "batch_cores", "m": "m_cores", "n": "n_cores", "k": "k_cores"}
    cores: dict[str, Any] = {names[dim]: count for dim, count in split.items()}
    shape = ProductShape(m=m // row.tiles, k=depth, n=n, batch=batch, shared=shared, **cores)
    shape = replace(shape, interleaved=(a, b and not shared, c))
    return (*before, product_counts(shape, DTYPES[row.dtype], row.kernel, row.tiles))
