"""Workflow 4: a kernel for 1024 rows launched over 4096, tile by tile.

`python -m examples.workflows.workflow_4_tiled`
"""

from __future__ import annotations

import numpy as np

from examples.make import matmul_tile
from examples.workflows.compiled_example import compiled
from spyre import FlexDevice, launch_kernel, prepare_kernel
from spyre.runtime.flex.scheduling import Engine

ROWS = 4096


def main() -> None:
    """Launch over four tiles; show the command stream and compare with one large launch."""
    card = FlexDevice()
    random = np.random.default_rng(0)
    a = card.to_device(random.standard_normal((ROWS, 256)).astype(np.float16), "a")
    b = card.to_device(random.standard_normal((256, 128)).astype(np.float16), "b")
    c, whole = card.empty((ROWS, 128), name="c"), card.empty((ROWS, 128), name="whole")
    with compiled("matmul_tile") as directory:
        plan = prepare_kernel(directory, card)

    with card.recording() as commands:
        # a and c have more rows than the kernel: four walks of the plan, each with addresses of
        # its own tile and a correction tensor of its own. b is what the kernel expects: reused.
        launch_kernel(plan, [a, b, c], card.default_stream)
    print(len(commands.control_blocks), "control blocks,", end=" ")
    print(len(commands.host_operations), "host operations")
    print(commands, end="")

    # The text is in order of submission. Engines overlap, and each of them keeps that order.
    for engine in Engine:
        print(engine.name, *(command.label for command in commands if command.engine is engine))

    # The same product by the same kernel, built for all rows.
    with compiled("matmul_4096", matmul_tile(ROWS)) as directory:
        launch_kernel(prepare_kernel(directory, card), [a, b, whole], card.default_stream)
    equal = card.to_host(c).storage == card.to_host(whole).storage
    print("equals the untiled result bit for bit:", bool(equal.all()))


if __name__ == "__main__":
    main()
