"""Small kernels loaded on a card, for tests of the flex layer."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from msgspec.structs import replace

from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.runtime.arguments.read import given_launch_spec, read_arguments
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.flex.loaded_kernel import LoadedKernel
from spyre.runtime.flex.steps import JobPlan
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    ArgumentEntry,
    LaunchSpec,
    Role,
    format_launch_spec,
)

Shape = tuple[int, ...]
STICK = (1, 64)


def device_bytes(shape: Shape) -> int:
    return SpyreTensorLayout.from_host(shape, "float16").device_bytes


def finish(builder: BundleBuilder, directory: Path, shapes: list[Shape]) -> Path:
    """Write a bundle whose last argument is its output."""
    roles = [Role.INPUT] * (len(shapes) - 1) + [Role.OUTPUT]
    layouts = [SpyreTensorLayout.from_host(s, "float16") for s in shapes]
    arguments = tuple(
        ArgumentEntry(k, role, shape, "float16", layout)
        for k, (role, shape, layout) in enumerate(zip(roles, shapes, layouts, strict=True))
    )
    spec = LaunchSpec(1, directory.name, arguments, pool_size=builder.pool_bytes)
    files = {LAUNCH_SPEC_FILE: format_launch_spec(spec).encode()}
    write_bundle(replace(builder.build(), extra_files=files), directory)
    return directory


def distance(directory: Path, shape: Shape = STICK, symbolic: bool = True) -> Path:
    """y = |a - b|, the difference in LX."""
    builder = BundleBuilder(symbolic=symbolic)
    a, b, y = (builder.argument(device_bytes(shape)) for _ in range(3))
    total = builder.temporary(device_bytes(shape))
    operands = [HostOperand(a.at()), HostOperand(b.at())]
    builder.add(pointwise("sub", shape, operands, HostOperand(total.at()), {}))
    builder.add(pointwise("abs", shape, [HostOperand(total.at())], HostOperand(y.at()), {}))
    return finish(builder, directory, [shape] * 3)


def add(directory: Path, shape: Shape = STICK, splits: dict[str, int] | None = None) -> Path:
    """y = a + b."""
    builder = BundleBuilder()
    a, b, y = (builder.argument(device_bytes(shape)) for _ in range(3))
    operands = [HostOperand(a.at()), HostOperand(b.at())]
    builder.add(pointwise("add", shape, operands, HostOperand(y.at()), splits or {}))
    return finish(builder, directory, [shape] * 3)


def product(directory: Path, m: int, k: int, n: int, splits: dict[str, int] | None = None) -> Path:
    """c = a @ b."""
    builder = BundleBuilder()
    shapes: list[Shape] = [(m, k), (k, n), (m, n)]
    operands = [HostOperand(builder.argument(device_bytes(s)).at()) for s in shapes]
    builder.add(matmul(m, k, n, *operands, splits=splits or {}))
    return finish(builder, directory, shapes)


def load(device: FlexDevice, directory: Path) -> JobPlan:
    """A bundle as a job plan on ``device``; its binary is its name."""
    bundle = load_bundle(directory)
    binary = directory.name.encode().ljust(128, b"\0")
    kernel = Kernel(bundle, device.device)
    spec = given_launch_spec(bundle)
    pool_bytes = 0 if spec is None else spec.pool_size
    arguments_of = partial(read_arguments, bundle)
    loaded = LoadedKernel(device, directory.name, kernel, arguments_of, binary, pool_bytes)
    device.streams.current.launch(loaded.load_plan(binary))
    return loaded.plan
