"""A bundle that gathers shards of a tensor on every core, reads them there, and writes them out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

import spyre
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import write_bundle
from spyre.mlir.operation.operation import Component

ROWS, COLUMNS, CORES = 16, 256, 4


def make(directory: Path) -> Path:
    """y = -x: rows of x on four cores, all of them on every core, columns of y by core."""
    builder = BundleBuilder()
    x, y = (builder.argument(ROWS * COLUMNS * 2) for _ in range(2))
    shards, whole = (HostOperand(n, component=Component.LX) for n in (0, 1 << 16))
    shape = (ROWS, COLUMNS)
    load = pointwise("neg", shape, [HostOperand(x.at())], shards, {"mb": CORES})
    store = pointwise("identity", shape, [whole], HostOperand(y.at()), {"out": CORES})
    rows = tuple({"mb": core, "out": 0} for core in range(CORES))
    everywhere = tuple({"mb": 0, "out": 0} for _ in range(CORES))
    source = replace(load.outputs[0], own_slices={"mb": CORES, "out": 1}, own_core_slices=rows)
    target = replace(store.inputs[0], own_slices={"mb": 1, "out": 1}, own_core_slices=everywhere)
    builder.add(load)
    builder.add(
        OperationSpec("shuffle", dict(load.extents), [source], [target], splits={"mb": CORES})
    )
    builder.add(replace(store, inputs=[target]))
    write_bundle(builder.build(), directory)
    return directory


def test_all_gather(tmp_path: Path):
    rng = np.random.default_rng(0)
    x = (rng.integers(-8, 9, (ROWS, COLUMNS)) / 4).astype(np.float16)
    result = spyre.run(make(tmp_path), [x], threads=1)
    np.testing.assert_array_equal(result.outputs[0], -x)
    gathered = result.executes[1].counters
    assert (gathered.lx_read_bytes, gathered.lx_written_bytes) == (CORES * ROWS * COLUMNS * 2,) * 2
    assert result.findings[0].code == "SPY364"
    assert len(result.findings) == 1
