"""Small bundles the runtime tests run; every function writes one and returns its directory."""

from __future__ import annotations

import re
from pathlib import Path

from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import write_bundle
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    ArgumentEntry,
    LaunchSpec,
    Role,
)
from tests.runtime.launch_specs import write_launch_spec

SHAPE = (32, 128)
NBYTES = 32 * 128 * 2


def abs_of_sum(directory: Path, symbolic: bool = True, spec: bool = True) -> Path:
    """|a + b| with the sum in the pool."""
    builder = BundleBuilder(symbolic=symbolic)
    a, b, y = (builder.argument(NBYTES) for _ in range(3))
    total = builder.temporary(NBYTES)
    splits = {"mb": 4}
    builder.add(
        pointwise(
            "add",
            SHAPE,
            [HostOperand(a.at()), HostOperand(b.at())],
            HostOperand(total.at()),
            splits,
        )
    )
    builder.add(pointwise("abs", SHAPE, [HostOperand(total.at())], HostOperand(y.at()), splits))
    write_bundle(builder.build(), directory)
    if spec:
        add_spec(directory, [Role.INPUT, Role.INPUT, Role.OUTPUT], builder.pool_bytes)
    return directory


def scratch(directory: Path) -> Path:
    """The same with device_mem_allocate instead of a pool."""
    abs_of_sum(directory, spec=False)
    module = directory / "bundle.mlir"
    text = re.sub(r"%pool_base_addr: !sdscbundle\.input_arg<index>, ", "", module.read_text())
    take = r"%pool = sdscbundle\.input_arg_extract [^\n]*"
    text = re.sub(take, f"%pool = sdscbundle.device_mem_allocate {NBYTES} bytes : index", text)
    module.write_text(text)
    add_spec(directory, [Role.INPUT, Role.INPUT, Role.OUTPUT], 0)
    return directory


def add_in_place(directory: Path) -> Path:
    """a += b."""
    builder = BundleBuilder()
    a, b = (HostOperand(builder.argument(NBYTES).at()) for _ in range(2))
    builder.add(pointwise("add", SHAPE, [a, b], a, {"mb": 2}))
    write_bundle(builder.build(), directory)
    add_spec(directory, [Role.INPUT_OUTPUT, Role.INPUT], 0)
    return directory


def add_spec(directory: Path, roles: list[Role], pool_bytes: int, dtype: str = "float16") -> None:
    layout = SpyreTensorLayout.from_host(SHAPE, dtype)
    arguments = tuple(ArgumentEntry(k, role, SHAPE, dtype, layout) for k, role in enumerate(roles))
    write_launch_spec(
        directory / LAUNCH_SPEC_FILE, LaunchSpec(1, "k", arguments, pool_size=pool_bytes)
    )
