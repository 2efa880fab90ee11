"""Workflow 3: one launch, from `launch_kernel` to the engines.

`python -m examples.workflows.workflow_3_launch`
"""

from __future__ import annotations

import numpy as np

from examples.workflows.compiled_example import compiled
from spyre import FlexDevice, launch_kernel, prepare_kernel


def main() -> None:
    """Launch a matmul over tensors of just its shapes, and show the three steps."""
    card = FlexDevice()
    stream = card.default_stream
    with compiled("matmul_tile") as directory:
        plan = prepare_kernel(directory, card, stream)
    a = card.to_device(np.full((1024, 256), 0.5, np.float16), "a")
    b = card.to_device(np.full((256, 128), 0.25, np.float16), "b")
    c = card.empty((1024, 128), name="c")

    with card.recording() as commands:
        # The shapes are those the kernel was compiled for: one walk of the plan.
        #   HostCompute  the CPU writes the tensors' addresses into a correction tensor,
        #   H2D          DMA copies it to program memory,
        #   Compute      the cores read it there, and compute.
        launch_kernel(plan, [a, b, c], stream)
        stream.synchronize()

    result = card.to_host(c).to_values()
    print("every element is 32:", bool((result == 256 * 0.5 * 0.25).all()))
    print(commands, end="")


if __name__ == "__main__":
    main()
