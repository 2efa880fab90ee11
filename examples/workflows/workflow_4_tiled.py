"""Workflow 4: a kernel for 1024 rows launched over 4096, tile by tile.

`python -m examples.workflows.workflow_4_tiled`
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from examples.make import matmul_tile
from examples.workflows.compiled_example import compiled
from spyre import FlexDevice, SpyreTensor, launch_kernel, prepare_kernel
from spyre.mlir.bundle import write_bundle
from spyre.runtime.spyrecode.compile import compile_directory

ROWS = 4096


def untiled(card: FlexDevice, a: SpyreTensor, b: SpyreTensor) -> SpyreTensor:
    """The same product by the same kernel, built for all rows."""
    c = card.empty((ROWS, 128))
    with TemporaryDirectory() as parent:
        directory = Path(parent) / "matmul_4096"
        write_bundle(matmul_tile(ROWS), directory)
        compile_directory(directory)
        launch_kernel(prepare_kernel(directory, card), [a, b, c], card.default_stream)
    return c


def main() -> None:
    """Launch over four tiles; show the command stream and compare with one large launch."""
    card = FlexDevice()
    random = np.random.default_rng(0)
    a = card.to_device(random.standard_normal((ROWS, 256)).astype(np.float16), "a")
    b = card.to_device(random.standard_normal((256, 128)).astype(np.float16), "b")
    c = card.empty((ROWS, 128), name="c")
    with compiled("matmul_tile") as directory:
        plan = prepare_kernel(directory, card)

    with card.recording() as commands:
        # a and c have more rows than the kernel: four walks of the plan, each with addresses of
        # its own tile and a correction tensor of its own. b is what the kernel expects: reused.
        launch_kernel(plan, [a, b, c], card.default_stream)
    print(len(commands.control_blocks), "control blocks,", end=" ")
    print(len(commands.host_operations), "host operations")
    print(commands, end="")

    tiled, whole = card.to_host(c), card.to_host(untiled(card, a, b))
    print("equals the untiled result bit for bit:", bool((tiled.storage == whole.storage).all()))


if __name__ == "__main__":
    main()
