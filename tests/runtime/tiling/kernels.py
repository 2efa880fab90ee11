"""Kernels for tests of tiling: one recipe, built for a tile or for the whole shape."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.operations import OperandSpec, OperationSpec
from spyre.mlir.builder.recipes import DL16, HostOperand, matmul, pointwise, reduction, restickify
from spyre.mlir.bundle import Bundle, load_bundle, write_bundle
from spyre.mlir.operation.operation import Component, Indirection
from spyre.runtime.arguments.read import read_arguments
from spyre.runtime.arguments.specs import KernelArguments
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    ArgumentEntry,
    LaunchSpec,
    Role,
)
from tests.mlir.window_recipes import Windows, pool
from tests.runtime.launch_specs import write_launch_spec


@cache
def _directories() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tile-kernels-")


def new_directory() -> Path:
    """For a bundle; it is there until the process ends."""
    return Path(tempfile.mkdtemp(dir=_directories().name))


FORMATS = {"float16": DL16, "float32": "IEEE_FP32", "int32": "IEEE_INT32"}
LANES = {"float16": 64, "float32": 32}
Sizes = Mapping[str, int]
"""Elements per dim of the recipe."""


class Arg(msgspec.Struct, frozen=True):
    """One argument: host shape, and its layout where it is not the default one."""

    role: Role
    shape: tuple[int, ...]
    dtype: str = "float16"
    sparse: bool = False
    swapped: bool = False

    @property
    def layout(self) -> SpyreTensorLayout:
        if self.sparse or self.swapped:
            order = [*range(len(self.shape)), *([-1] if self.sparse else [])]
            if self.swapped:
                order[-2:] = order[-1], order[-2]
            strides = contiguous_strides(self.shape)
            return SpyreTensorLayout.from_dim_order(self.shape, strides, self.dtype, order)
        return SpyreTensorLayout.from_host(self.shape, self.dtype)


class Maker(msgspec.Struct, dict=True):
    """Collects a bundle and its arguments."""

    symbolic: bool = True
    args: list[Arg] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self.builder = BundleBuilder(self.symbolic)

    def arg(self, arg: Arg, absent: Sequence[int] = ()) -> HostOperand:
        self.args.append(arg)
        buffer = self.builder.argument(arg.layout.device_bytes)
        return HostOperand(buffer.at(), tuple(absent), FORMATS[arg.dtype])

    def done(self) -> Built:
        parts = self.builder.build()
        directory = new_directory()
        write_bundle(parts, directory)
        arguments = tuple(
            ArgumentEntry(k, a.role, a.shape, a.dtype, a.layout) for k, a in enumerate(self.args)
        )
        spec = LaunchSpec(1, "k", arguments, pool_size=self.builder.pool_bytes)
        write_launch_spec(directory / LAUNCH_SPEC_FILE, spec)
        bundle = load_bundle(directory)
        bundle.check(raise_on_error=True)
        return Built(bundle, tuple(self.args), read_arguments(bundle))


class Built(msgspec.Struct, frozen=True):
    """A bundle with its arguments."""

    bundle: Bundle
    args: tuple[Arg, ...]
    arguments: KernelArguments


def in_lx(offset_bytes: int, dtype: str = "float16", absent: Sequence[int] = ()) -> HostOperand:
    return HostOperand(offset_bytes, tuple(absent), FORMATS[dtype], Component.LX)


def elementwise(
    shape: Sequence[int],
    splits: Sizes,
    symbolic: bool,
    dtype: str = "float16",
    absent: tuple[tuple[int, ...], ...] = (),
    name: str = "abs",
    in_place: bool = False,
) -> Built:
    """``name`` of as many inputs as ``absent`` has entries: the axes each lacks."""
    maker = Maker(symbolic)
    shape = tuple(shape)
    inputs = []
    for k, axes in enumerate(absent):
        kept = tuple(n for axis, n in enumerate(shape) if axis not in axes)
        role = Role.INPUT_OUTPUT if in_place and k == 0 else Role.INPUT
        inputs.append(maker.arg(Arg(role, kept, dtype, len(shape) - 1 in axes), axes))
    target = inputs[0] if in_place else maker.arg(Arg(Role.OUTPUT, shape, dtype))
    maker.builder.add(pointwise(name, shape, inputs, target, splits))
    return maker.done()


def reduce(
    shape: Sequence[int],
    splits: Sizes,
    symbolic: bool,
    axes: tuple[int, ...],
    name: str = "sum",
    dtype: str = "float16",
) -> Built:
    maker = Maker(symbolic)
    shape = tuple(shape)
    sparse = len(shape) - 1 in axes
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    source = maker.arg(Arg(Role.INPUT, shape, dtype))
    target = maker.arg(Arg(Role.OUTPUT, kept[:-1] if sparse else kept, dtype, sparse))
    maker.builder.add(reduction(name, shape, axes, source, target, splits))
    return maker.done()


def mm(sizes: Sizes, splits: Sizes, symbolic: bool, batch: Sequence[str] = ()) -> Built:
    """``m``, ``k``, ``n`` and batch dims of ``sizes``."""
    maker = Maker(symbolic)
    m, k, n = (sizes[d] for d in "mkn")
    outer = tuple(sizes[d] for d in batch)
    left = maker.arg(Arg(Role.INPUT, (*outer, m, k)))
    right = maker.arg(Arg(Role.INPUT, (*outer, k, n)))
    target = maker.arg(Arg(Role.OUTPUT, (*outer, m, n)))
    maker.builder.add(matmul(m, k, n, left, right, target, outer, splits))
    return maker.done()


def softmax(shape: Sequence[int], splits: Sizes, symbolic: bool) -> Built:
    """softmax over the last dim of two, everything between in LX."""
    maker = Maker(symbolic)
    rows = shape[0] // splits.get("mb", 1)
    x = maker.arg(Arg(Role.INPUT, tuple(shape)))
    y = maker.arg(Arg(Role.OUTPUT, tuple(shape)))
    top, total, terms = in_lx(0), in_lx(rows * 128), in_lx(2 * rows * 128)
    per_row = [replace(operand, absent_axes=(1,)) for operand in (top, total)]
    add = maker.builder.add
    add(reduction("max", shape, (1,), x, top, splits))
    add(pointwise("sub", shape, [x, per_row[0]], terms, splits))
    add(pointwise("exp", shape, [terms], terms, splits))
    add(reduction("sum", shape, (1,), terms, total, splits))
    add(pointwise("realdiv", shape, [terms, per_row[1]], y, splits))
    return maker.done()


def chain(shape: Sequence[int], splits: Sizes, symbolic: bool) -> Built:
    """y = |a + b| · b, the sum in LX, its absolute value in the pool."""
    maker = Maker(symbolic)
    shape = tuple(shape)
    a, b = (maker.arg(Arg(Role.INPUT, shape)) for _ in range(2))
    y = maker.arg(Arg(Role.OUTPUT, shape))
    pool = maker.builder.temporary(Arg(Role.INPUT, shape).layout.device_bytes)
    add = maker.builder.add
    add(pointwise("add", shape, [a, b], in_lx(0), splits))
    add(pointwise("abs", shape, [in_lx(0)], HostOperand(pool.at()), splits))
    add(pointwise("mul", shape, [HostOperand(pool.at()), b], y, splits))
    return maker.done()


def mm_chain(sizes: Sizes, splits: Sizes, symbolic: bool) -> Built:
    """y = |x·w| + bias, the product in the pool."""
    maker = Maker(symbolic)
    m, k, n = (sizes[d] for d in "mkn")
    x = maker.arg(Arg(Role.INPUT, (m, k)))
    w = maker.arg(Arg(Role.INPUT, (k, n)))
    bias = maker.arg(Arg(Role.INPUT, (n,)), (0,))
    y = maker.arg(Arg(Role.OUTPUT, (m, n)))
    nbytes = Arg(Role.INPUT, (m, n)).layout.device_bytes
    one, two = (HostOperand(maker.builder.temporary(nbytes).at()) for _ in range(2))
    maker.builder.add(matmul(m, k, n, x, w, one, (), splits))
    maker.builder.add(pointwise("abs", (m, n), [one], two, {}))
    maker.builder.add(pointwise("add", (m, n), [two, bias], y, {}))
    return maker.done()


def looped(shape: Sequence[int], splits: Sizes, symbolic: bool, parts: int) -> Built:
    """y = a + b, ``parts`` pieces of rows in an scf.for, rank 2."""
    maker = Maker(symbolic)
    shape = tuple(shape)
    rows = shape[0] // parts
    for role in (Role.INPUT, Role.INPUT, Role.OUTPUT):
        maker.arg(Arg(role, shape))
    with maker.builder.loop(parts) as loop:
        a, b, y = (
            HostOperand(buffer.at(0, {loop: rows * 128}), gap={"mb": shape[0] - rows})
            for buffer in maker.builder.arguments
        )
        maker.builder.add(pointwise("add", (rows, shape[1]), [a, b], y, splits))
    return maker.done()


def convert(shape: Sequence[int], splits: Sizes, symbolic: bool) -> Built:
    """float32 → DL16, value by value, in the standard arrangement."""
    maker = Maker(symbolic)
    shape = tuple(shape)
    x = maker.arg(Arg(Role.INPUT, shape, "float32"))
    y = maker.arg(Arg(Role.OUTPUT, shape, "float16"))
    maker.builder.add(pointwise("fp32todl16", shape, [x], y, splits))
    return maker.done()


def transpose(shape: Sequence[int], splits: Sizes, symbolic: bool) -> Built:
    """The same host tensor with its second last dim along the stick."""
    maker = Maker(symbolic)
    shape = tuple(shape)
    x = maker.arg(Arg(Role.INPUT, shape))
    y = maker.arg(Arg(Role.OUTPUT, shape, swapped=True))
    maker.builder.add(restickify(shape, x, y, splits))
    return maker.done()


def gather(rows: int, table_rows: int) -> Built:
    """out[r] = table[index[r]], 128 columns."""
    maker = Maker()
    maker.arg(Arg(Role.INPUT, (rows,), "int32"))
    maker.arg(Arg(Role.INPUT, (table_rows, 128)))
    maker.arg(Arg(Role.OUTPUT, (rows, 128)))
    index, table, out = (buffer.at() for buffer in maker.builder.arguments)
    counts = OperandSpec(
        ("mb",),
        (("mb", 32),),
        index,
        data_format="IEEE_INT32",
        role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )
    stick = (("out", 64),)
    value = OperandSpec(
        ("mb", "out"),
        stick,
        table,
        max_dim_sizes={"mb": 1},
        device_dim_sizes={"mb": table_rows},
        indirection=Indirection.VALUE,
    )
    target = OperandSpec(("mb", "out"), stick, out)
    extents = {"mb": rows, "out": 128}
    maker.builder.add(OperationSpec("identity", extents, [value], [target], index_inputs=[counts]))
    return maker.done()


class Staggered(Arg, frozen=True):
    """float32 as dl16tofp32 leaves it: a stick's elements over two sticks."""

    @property
    def layout(self) -> SpyreTensorLayout:
        return replace(super().layout, element_arrangement="DL16_TO_FP32")


def widen(shape: Sequence[int], symbolic: bool = True) -> Built:
    """DL16 → float32, staggered."""
    maker = Maker(symbolic)
    shape = tuple(shape)
    x = maker.arg(Arg(Role.INPUT, shape))
    y = maker.arg(Staggered(Role.OUTPUT, shape, "float32"))
    maker.builder.add(pointwise("dl16tofp32", shape, [x], y))
    return maker.done()


def sized(maximum: int, columns: int, rows: int) -> Built:
    """y = |x| over a runtime size S of ``rows``, at most ``maximum``."""
    maker = Maker(True)
    size = maker.builder.size("S", maximum)
    x, y = (maker.arg(Arg(role, (maximum, columns))) for role in (Role.INPUT, Role.OUTPUT))
    spec = pointwise("abs", (maximum, columns), [x], y)
    maker.builder.add(replace(spec, sizes={"mb": size}))
    directory = new_directory()
    write_bundle(maker.builder.build(), directory)
    arguments = tuple(
        ArgumentEntry(k, a.role, ("S", columns), a.dtype, a.layout)
        for k, a in enumerate(maker.args)
    )
    write_launch_spec(directory / LAUNCH_SPEC_FILE, LaunchSpec(1, "k", arguments))
    bundle = load_bundle(directory)
    return Built(bundle, tuple(maker.args), read_arguments(bundle, {"S": rows}))


def max_pool(shape: Sequence[int], splits: Sizes, symbolic: bool) -> Built:
    """2x2 windows of [batch, height, width, channels], two apart."""
    maker = Maker(symbolic)
    batch, height, width, channels = shape
    x = maker.arg(Arg(Role.INPUT, tuple(shape)))
    y = maker.arg(Arg(Role.OUTPUT, (batch, height // 2, width // 2, channels)))
    windows = Windows((2, 2), (2, 2))
    maker.builder.add(pool("maxpoolfwd", tuple(shape), windows, x, y, splits))
    return maker.done()


def one_row(shape: Sequence[int], splits: Sizes, symbolic: bool) -> Built:
    """y = |a + b| of [rows, columns] by way of LX; a single row is no dim of the operations."""
    maker = Maker(symbolic)
    a, b = (maker.arg(Arg(Role.INPUT, tuple(shape))) for _ in range(2))
    y = maker.arg(Arg(Role.OUTPUT, tuple(shape)))
    walked = tuple(shape[1:]) if shape[0] == 1 else tuple(shape)
    maker.builder.add(pointwise("add", walked, [a, b], in_lx(0), splits))
    maker.builder.add(pointwise("abs", walked, [in_lx(0)], y, splits))
    return maker.done()
