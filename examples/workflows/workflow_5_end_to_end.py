"""Workflow 5: from host tensors to a result on the host, all on the default stream.

`python -m examples.workflows.workflow_5_end_to_end`
"""

from __future__ import annotations

import numpy as np

from examples.workflows.compiled_example import compiled
from spyre import FlexDevice, launch_kernel


def main() -> None:
    """Copy, launch a directory, copy back; nothing waits before the last copy."""
    card = FlexDevice()
    random = np.random.default_rng(0)
    a = random.integers(-8, 9, (4096, 256)).astype(np.float16)
    b = random.integers(-8, 9, (256, 128)).astype(np.float16)

    with compiled("matmul_tile") as directory, card.recording() as commands:
        a_card, b_card = card.to_device(a, "a"), card.to_device(b, "b")
        c_card = card.empty((4096, 128), name="c")
        # The first launch of a directory loads its binary, later ones find it on the card.
        launch_kernel(directory, [a_card, b_card, c_card], card.default_stream)
        c = card.to_host(c_card).to_values()

    # Products are summed in float32 and rounded once, to the 9 bits of a DL16 number's mantissa.
    exact = a.astype(np.float64) @ b.astype(np.float64)
    print("within half a unit of the last place:", bool(np.allclose(c, exact, 2**-10, 0)))
    kinds = [command.block.kind for command in commands]
    for kind in dict.fromkeys(kinds):
        print(kinds.count(kind), kind)
    print(commands, end="")


if __name__ == "__main__":
    main()
