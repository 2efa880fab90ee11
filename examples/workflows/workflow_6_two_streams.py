"""Workflow 6: two streams with independent work, on today's hardware and on tomorrow's.

`python -m examples.workflows.workflow_6_two_streams`
"""

from __future__ import annotations

import numpy as np

from examples.workflows.compiled_example import compiled
from spyre import FlexDevice, launch_kernel, prepare_kernel
from spyre.runtime.flex.scheduling import Engine

DURATIONS = {Engine.HOST: 1, Engine.DMA: 3, Engine.COMPUTE: 6}


def show(policy: str) -> None:
    """A tiled matmul on one stream; on the other a copy, then a softmax of what was copied."""
    card = FlexDevice(policy=policy)
    with compiled("matmul_tile") as matmul, compiled("softmax") as softmax:
        product, shares = prepare_kernel(matmul, card), prepare_kernel(softmax, card)
    a = card.to_device(np.ones((2048, 256), np.float16), "a")
    b = card.to_device(np.ones((256, 128), np.float16), "b")
    c, y = card.empty((2048, 128), name="c"), card.empty((128, 256), name="y")
    stream_a, stream_b = card.streams.take(), card.streams.take()

    # In virtual time every step takes as long as we say, so what is shown is the policy alone.
    # Without it the same lines run on the engines of the card, as fast as they can.
    with card.recording() as commands, card.virtual_time(DURATIONS) as time:
        launch_kernel(product, [a, b, c], stream_a)
        x = card.to_device(np.ones((128, 256), np.float16), "x", stream=stream_b)
        launch_kernel(shares, [x, y], stream_b)
        stream_a.synchronize()
        stream_b.synchronize()

    print(f"{policy}: {time.now} in all")
    names = {command.label: f"{command.block.kind} {command.block.name}" for command in commands}
    for span in time.spans:
        print(span, names[span.label])
    print("c is 256:", bool((card.to_host(c).to_values() == 256).all()))
    print("y is 1/256:", bool((card.to_host(y).to_values() == 1 / 256).all()))


def main() -> None:
    """The same work under both policies."""
    # Jobs of different streams run one after another; only the preparation of the next overlaps.
    show("serialised")
    # The first job of every stream may run: stream 2's copy goes on beside the matmul's tiles.
    show("concurrent")


if __name__ == "__main__":
    main()
