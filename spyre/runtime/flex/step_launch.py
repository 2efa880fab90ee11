"""A tiled launch with more to do than to run the kernel: padded tiles, sums over tiles.

Its iterations are the steps of :mod:`spyre.runtime.tiling.tile_steps`; tiles that are not whole go
through temporaries, which live as long as the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.runtime.kernel import Kernel, LaunchShape
from spyre.runtime.tiling.execute import Temporaries, TiledLaunch, temporaries_of
from spyre.runtime.tiling.tile_steps import Compute, TileStep

RunKernel = Callable[[Kernel, LaunchShape, tuple[int, ...]], None]


class StepLaunch:
    """One launch, step by step; its steps run in order, on the compute engine.

    ``temporaries``: memory for `temporaries_of` the plan.
    """

    def __init__(self, tiled: TiledLaunch, temporaries: Temporaries) -> None:
        self._tiled = tiled
        self._temporaries = temporaries
        self._steps: Sequence[TileStep] = tuple(tiled.steps())
        self.addresses = np.array([self._addresses(step) for step in self._steps], np.int64)

    def __len__(self) -> int:
        """Number of steps."""
        return len(self._steps)

    def _addresses(self, step: TileStep) -> tuple[int, ...]:
        """What a step binds; a copy binds nothing and says what the launch does."""
        if isinstance(step, Compute):
            return self._tiled.launch_of(step, self._temporaries).addresses
        return self._tiled.launch.addresses

    def run(self, first: int, addresses: Int64Array, run_kernel: RunKernel) -> None:
        """Run the steps from ``first`` on, one per row of ``addresses`` [step, address]."""
        for place, row in enumerate(addresses.tolist(), first):
            step = self._steps[place]
            if isinstance(step, Compute):
                kernel = self._tiled.kernel_of(step)
                shape = kernel.shape_of(self._tiled.launch_of(step, self._temporaries))
                run_kernel(kernel, shape, tuple(row))
            else:
                self._tiled.run_step(step, self._temporaries)


__all__ = ["StepLaunch", "temporaries_of"]
