"""Writes the example bundles: softmax, matmul, matmul_tile and add_loop.

`python examples/make.py [DIRECTORY]` regenerates them, byte for byte (a test checks that), below
DIRECTORY (default: this one). Each shows one thing: work split over cores with intermediates in
the scratchpads, a matmul whose inner dim is split, one that is launched as a tile of larger ones, a
loop over tiles of larger tensors. `workflows/` launches some of them on streams.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction
from spyre.mlir.bundle import BundleContents, write_bundle
from spyre.mlir.operation.operation import Component
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    ArgumentEntry,
    LaunchSpec,
    Role,
    format_launch_spec,
)

STICK_BYTES = 128
Shape = tuple[int, ...]


def softmax() -> BundleContents:
    """softmax(x, dim=1) of 128x256 on 8 cores; everything between x and y stays in LX."""
    shape, splits = (128, 256), {"mb": 8}
    builder = BundleBuilder()
    x, y = builder.argument(size_bytes(shape)), builder.argument(size_bytes(shape))
    rows = shape[0] // splits["mb"]
    top, total, terms = in_lx(0), in_lx(rows * STICK_BYTES), in_lx(2 * rows * STICK_BYTES)
    source = HostOperand(x.at())
    builder.add(reduction("max", shape, (1,), source, top, splits))
    builder.add(pointwise("sub", shape, [source, per_row(top)], terms, splits))
    builder.add(pointwise("exp", shape, [terms], terms, splits))
    builder.add(reduction("sum", shape, (1,), terms, total, splits))
    builder.add(pointwise("realdiv", shape, [terms, per_row(total)], HostOperand(y.at()), splits))
    return with_launch_spec(builder, "softmax", [shape], shape)


def matmul_split() -> BundleContents:
    """C = A·B, 128x256 times 256x192, rows split over 4 cores and the inner dim over 2."""
    left, right, product = (128, 256), (256, 192), (128, 192)
    builder = BundleBuilder()
    a, b, c = (builder.argument(size_bytes(shape)) for shape in (left, right, product))
    operands = HostOperand(a.at()), HostOperand(b.at()), HostOperand(c.at())
    builder.add(matmul(128, 256, 192, *operands, splits={"mb": 4, "in": 2}))
    return with_launch_spec(builder, "matmul", [left, right], product)


def matmul_tile(rows: int = 1024) -> BundleContents:
    """C = A·B, ``rows``x256 times 256x128, rows split over 8 cores."""
    left, right, product = (rows, 256), (256, 128), (rows, 128)
    builder = BundleBuilder()
    a, b, c = (builder.argument(size_bytes(shape)) for shape in (left, right, product))
    operands = HostOperand(a.at()), HostOperand(b.at()), HostOperand(c.at())
    builder.add(matmul(rows, 256, 128, *operands, splits={"mb": 8}))
    return with_launch_spec(builder, "matmul_tile", [left, right], product)


def add_loop() -> BundleContents:
    """y = a + b of 256x512, 64 rows per iteration of an scf.for, on 4 cores.

    A tile's rows lie together inside each column of sticks, so one iteration moves 64 sticks, and
    the gap says that a column is 256 rows long, not 64.
    """
    shape, rows = (256, 512), 64
    builder = BundleBuilder()
    buffers = [builder.argument(size_bytes(shape)) for _ in range(3)]
    with builder.loop(shape[0] // rows) as tile:
        a, b, y = (
            HostOperand(buffer.at(0, {tile: rows * STICK_BYTES}), gap={"mb": shape[0] - rows})
            for buffer in buffers
        )
        builder.add(pointwise("add", (rows, shape[1]), [a, b], y, {"mb": 4}))
    return with_launch_spec(builder, "add_loop", [shape, shape], shape)


EXAMPLES = {
    "softmax": softmax,
    "matmul": matmul_split,
    "matmul_tile": matmul_tile,
    "add_loop": add_loop,
}


def size_bytes(shape: Shape) -> int:
    """Device bytes of a float16 tensor in default layout."""
    return SpyreTensorLayout.from_host(shape, "float16").device_bytes


def in_lx(offset_bytes: int) -> HostOperand:
    """An operand in every core's scratchpad."""
    return HostOperand(offset_bytes, component=Component.LX)


def per_row(operand: HostOperand) -> HostOperand:
    """``operand`` as a tensor with one value per row."""
    return replace(operand, absent_axes=(1,))


def with_launch_spec(
    builder: BundleBuilder, name: str, inputs: list[Shape], output: Shape
) -> BundleContents:
    """The bundle with a launch_spec.json: float16 inputs, then one float16 output."""
    roles = [Role.INPUT] * len(inputs) + [Role.OUTPUT]
    arguments = tuple(
        ArgumentEntry(k, role, shape, "float16", SpyreTensorLayout.from_host(shape, "float16"))
        for k, (role, shape) in enumerate(zip(roles, [*inputs, output], strict=True))
    )
    text = format_launch_spec(LaunchSpec(1, name, arguments))
    pretty = msgspec.json.format(text, indent=1) + "\n"
    return replace(builder.build(), extra_files={LAUNCH_SPEC_FILE: pretty.encode()})


def sample(shape: Shape) -> NDArray[np.float16]:
    """Multiples of 1/32 between -4 and 4, which every format here holds exactly."""
    steps = np.arange(np.prod(shape), dtype=np.int64) * 7919 % 257 - 128
    return (steps / 32).astype(np.float16).reshape(shape)


def softmax_of(x: NDArray[np.float16]) -> NDArray[np.float32]:
    """softmax over the last dim, in double precision."""
    terms = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    shares: NDArray[np.float64] = terms / terms.sum(axis=-1, keepdims=True)
    return shares.astype(np.float32)


def main(directory: Path) -> None:
    """Write all examples below ``directory``."""
    for name, build in EXAMPLES.items():
        write_bundle(build(), directory / name)
    x = sample((128, 256))
    np.save(directory / "softmax" / "input.npy", x)
    np.save(directory / "softmax" / "expected.npy", softmax_of(x))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
