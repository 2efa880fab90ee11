"""Workflow 1: a tensor is allocated on the card and copied there, and back.

`python -m examples.workflows.workflow_1_transfer`
"""

from __future__ import annotations

import numpy as np

from spyre import FlexDevice


def main() -> None:
    """Copy a tensor to the card and back, and show the two control blocks."""
    card = FlexDevice()
    x = (np.arange(128 * 200) % 256).astype(np.float16).reshape(128, 200)

    with card.recording() as commands:
        # Memory is allocated at once. The copy is a job of one DMA step: it is enqueued on the
        # current stream, and the call returns. The host may go on, but must leave x alone.
        tensor = card.to_device(x, "x")
        print(tensor, "handle", tensor.allocation_index)
        print(tensor.layout)
        # 200 columns fill 3 sticks of 64 and a part of a fourth.
        print(tensor.size_bytes, "bytes on the card,", x.nbytes, "on the host")

        # The way back waits, as the host is to read the result.
        back = card.to_host(tensor)

    print("same elements:", bool((back.to_values() == x).all()))
    print(commands, end="")


if __name__ == "__main__":
    main()
