"""Small good bundles made by the builder; the bad ones are these with a patch."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.operations import OperandSpec, OperationSpec
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction, restickify
from spyre.mlir.bundle import BundleContents
from spyre.mlir.operation.operation import Component, Indirection
from tests.mlir.window_recipes import Windows, conv2d, pool

DL16_STICK = (("out", 64),)


def add_on_two_cores(symbolic: bool) -> BundleContents:
    builder = BundleBuilder(symbolic=symbolic)
    a, b, c = (builder.argument(32 * 128 * 2) for _ in range(3))
    spec = pointwise(
        "add", (32, 128), [HostOperand(a.at()), HostOperand(b.at())], HostOperand(c.at()), {"mb": 2}
    )
    builder.add(spec)
    return builder.build()


def masked_sum() -> BundleContents:
    builder = BundleBuilder(symbolic=False)
    x, y = builder.argument(32 * 128 * 2), builder.argument(32 * 128)
    builder.add(
        reduction("sum", (32, 100), [1], HostOperand(x.at()), HostOperand(y.at()), {"mb": 2})
    )
    return builder.build()


def mean_with_constant() -> BundleContents:
    builder = BundleBuilder(symbolic=False)
    x, y = builder.argument(4 * 128 * 2), builder.argument(4 * 128)
    constants = {"scaling_factor": 0x308F}
    spec = reduction(
        "mean", (4, 100), [1], HostOperand(x.at()), HostOperand(y.at()), None, constants
    )
    builder.add(spec)
    return builder.build()


def exp_in_lx() -> BundleContents:
    builder = BundleBuilder(symbolic=False)
    x = builder.argument(32 * 128 * 2)
    scratch = HostOperand(4096, component=Component.LX)
    builder.add(pointwise("exp", (32, 128), [HostOperand(x.at())], scratch, {"mb": 2}))
    builder.add(pointwise("neg", (32, 128), [scratch], HostOperand(x.at()), {"mb": 2}))
    return builder.build()


def gather() -> BundleContents:
    builder = BundleBuilder(symbolic=False)
    index, table, rows = (builder.argument(n) for n in (128, 64 * 256, 16 * 256))
    spec = OperationSpec(
        name="identity",
        extents={"mb": 16, "out": 128},
        index_inputs=[
            OperandSpec(
                ("mb",),
                (("mb", 32),),
                index.at(),
                data_format="SENUINT32",
                role="KERNEL_IDX",
                indirection=Indirection.INDEX,
            )
        ],
        inputs=[
            OperandSpec(
                ("out", "mb"),
                DL16_STICK,
                table.at(),
                max_dim_sizes={"mb": 1},
                indirection=Indirection.VALUE,
            )
        ],
        outputs=[OperandSpec(("mb", "out"), DL16_STICK, rows.at())],
    )
    builder.add(spec)
    return builder.build()


def split_matmul() -> BundleContents:
    builder = BundleBuilder(symbolic=False)
    a, b, c = (builder.argument(n) for n in (64 * 256 * 2, 256 * 128 * 2, 64 * 128 * 2))
    spec = matmul(
        64,
        256,
        128,
        HostOperand(a.at()),
        HostOperand(b.at()),
        HostOperand(c.at()),
        splits={"mb": 2, "in": 2},
    )
    builder.add(spec)
    return builder.build()


def padded_restickify() -> BundleContents:
    builder = BundleBuilder(symbolic=False)
    x, y = builder.argument(96 * 192 * 2), builder.argument(130 * 128 * 2)
    builder.add(restickify((96, 130), HostOperand(x.at()), HostOperand(y.at())))
    return builder.build()


def two_loops(symbolic: bool) -> BundleContents:
    """exp into the pool, then tiles of 128 x 128 added: a coarse-tiled [512, 256]."""
    builder = BundleBuilder(symbolic=symbolic)
    x, y = builder.argument(512 * 256 * 2), builder.argument(512 * 256 * 2)
    pool = builder.temporary(512 * 256 * 2)
    builder.add(
        pointwise("exp", (512, 256), [HostOperand(x.at())], HostOperand(pool.at()), {"mb": 4})
    )
    with builder.loop(4) as row, builder.loop(2) as column:
        strides = {row: 128 * 128, column: 512 * 128 * 2}
        tile = [HostOperand(b.at(0, strides), gap={"mb": 384}) for b in (x, pool, y)]
        builder.add(pointwise("add", (128, 128), tile[:2], tile[2], {"mb": 2}))
    return builder.build()


def convolution() -> BundleContents:
    """3 x 3 windows, stride 2, over a padded [2, 9, 16, 64], the rows on two cores."""
    builder = BundleBuilder(symbolic=False)
    x, w, y = (builder.argument(n) for n in (2 * 9 * 16 * 128, 9 * 64 * 256, 2 * 4 * 8 * 256))
    windows = Windows((3, 3), (2, 2), (1, 1), ((0, 0), (1, 0)))
    operands = (HostOperand(x.at()), HostOperand(w.at()), HostOperand(y.at()))
    builder.add(conv2d((2, 9, 16, 64), 128, windows, *operands, {"i": 2}))
    return builder.build()


def pooling() -> BundleContents:
    builder = BundleBuilder(symbolic=False)
    x, y = builder.argument(8 * 8 * 128), builder.argument(4 * 4 * 128)
    windows = Windows((2, 2), (2, 2))
    spec = pool("maxpoolfwd", (1, 8, 8, 64), windows, HostOperand(x.at()), HostOperand(y.at()))
    builder.add(spec)
    return builder.build()


def runtime_rows() -> BundleContents:
    """|a + b| over [s0, 128], s0 up to 64 in steps of 16, the sum in LX, on four cores."""
    builder = BundleBuilder()
    a, b, c = (builder.argument(64 * 128 * 2) for _ in range(3))
    size = builder.size("s0", 64, 16)
    scratch = HostOperand(4096, component=Component.LX)
    sum_ = pointwise(
        "add", (64, 128), [HostOperand(a.at()), HostOperand(b.at())], scratch, {"mb": 4}
    )
    abs_ = pointwise("abs", (64, 128), [scratch], HostOperand(c.at()), {"mb": 4})
    for spec in (sum_, abs_):
        builder.add(replace(spec, sizes={"mb": size}))
    return builder.build()


def shuffle() -> BundleContents:
    """A row-wise division of [32, 64] over 4 cores becomes two halves on two cores each."""
    builder = BundleBuilder(symbolic=False)
    source = OperandSpec(
        ("mb", "out"),
        DL16_STICK,
        0,
        component=Component.LX,
        own_slices={"mb": 4, "out": 1},
        own_core_slices=tuple({"mb": core, "out": 0} for core in range(4)),
    )
    target = replace(
        source,
        base=1 << 16,
        own_slices={"mb": 2, "out": 1},
        own_core_slices=tuple({"mb": core // 2, "out": 0} for core in range(4)),
    )
    builder.add(
        OperationSpec("shuffle", {"mb": 32, "out": 64}, [source], [target], splits={"mb": 4})
    )
    return builder.build()


def pages() -> BundleContents:
    """Four pages of 4 rows, picked from a [24, 128] table."""
    builder = BundleBuilder(symbolic=False)
    index, table, rows = (builder.argument(n) for n in (128, 24 * 256, 16 * 256))
    index_tensor = OperandSpec(
        ("x",),
        (("x", 32),),
        index.at(),
        data_format="SENUINT32",
        role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )
    table_tensor = OperandSpec(
        ("mb", "out"),
        DL16_STICK,
        table.at(),
        max_dim_sizes={"mb": 4},
        device_dim_sizes={"mb": 24, "out": 128},
        indirection=Indirection.VALUE,
    )
    target = OperandSpec(("mb", "out", "x"), DL16_STICK, rows.at())
    extents = {"x": 4, "mb": 4, "out": 128}
    builder.add(
        OperationSpec("identity", extents, [table_tensor], [target], index_inputs=[index_tensor])
    )
    return builder.build()


SAMPLES: dict[str, Callable[[], BundleContents]] = {
    "add": lambda: add_on_two_cores(symbolic=False),
    "symbolic_add": lambda: add_on_two_cores(symbolic=True),
    "masked_sum": masked_sum,
    "mean": mean_with_constant,
    "lx": exp_in_lx,
    "gather": gather,
    "matmul": split_matmul,
    "restickify": padded_restickify,
    "convolution": convolution,
    "pooling": pooling,
    "runtime_rows": runtime_rows,
    "shuffle": shuffle,
    "pages": pages,
    "tiled": lambda: two_loops(symbolic=True),
    "tiled_baked": lambda: two_loops(symbolic=False),
}
