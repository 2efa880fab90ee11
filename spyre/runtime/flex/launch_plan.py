"""What launches over tensors of one signature have in common, and what one launch adds to it.

A `LaunchPlan` is found once per signature: the kernel as it is, or retargeted to tiles of larger
tensors with the offset of every tile. A `KernelLaunch` is one launch of it, at its addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from spyre.layout import Int64Array
from spyre.runtime.flex.job import LARGE_BYTES, JobPlan, LaunchContext
from spyre.runtime.kernel import Kernel, Launch, LaunchSignature, Runner
from spyre.runtime.memory import DeviceStorage, ProgramMemory

if TYPE_CHECKING:
    from spyre.runtime.flex.device import FlexDevice
    from spyre.runtime.tiling import TiledLaunch, TilePlan, TileSteps

CHUNK_BYTES = 1 << 26
"""Tensor bytes that tiles run over in one go: some milliseconds."""


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """How a kernel runs over tensors of one signature. Immutable; any thread may use it.

    ``kernel``: what runs, once per iteration. ``offsets_bytes``: int64 [iteration, address], of
    each tile's corner from the start of its tensor; None for one pass. ``tiles``: the tile plan,
    None for one pass of the kernel as it is. ``names``: of the memory at each address.
    """

    kernel: Kernel
    signature: LaunchSignature
    names: tuple[str, ...]
    size_bytes: int
    offsets_bytes: Int64Array | None = None
    tiles: TilePlan | None = None

    @classmethod
    def one_pass(cls, kernel: Kernel, launch: Launch) -> LaunchPlan:
        """One pass of ``kernel`` over tensors that somebody else has checked."""
        return cls(kernel, kernel.signature_of(launch), launch.names, _size_bytes(launch))

    @classmethod
    def over_tiles(cls, tiled: TiledLaunch) -> LaunchPlan:
        """The kernel retargeted to tiles, and where every tile lies."""
        from spyre.runtime.tiling import Compute

        plan, launch = tiled.plan, tiled.launch
        first = Compute(0)
        kernel = tiled.kernel_of(first)
        signature = kernel.signature_of(tiled.launch_of(first))
        column_of = {tensor.expected.arg_index: k for k, tensor in enumerate(plan.tensors)}
        offsets_bytes = np.zeros((plan.iterations, len(signature.indices)), np.int64)
        for column, index in enumerate(signature.indices):
            if index in column_of:
                offsets_bytes[:, column] = plan.offsets_bytes[:, column_of[index]]
        return cls(kernel, signature, launch.names, _size_bytes(launch), offsets_bytes, plan)

    # Every launch asks for these three: an attribute costs less than a call.

    @cached_property
    def is_large(self) -> bool:
        """True if a launch is worth a second thread."""
        return self.size_bytes > LARGE_BYTES or self.iterations > 1

    @cached_property
    def chunk(self) -> int:
        return min(max(CHUNK_BYTES * self.iterations // max(self.size_bytes, 1), 1), 4096)

    @cached_property
    def iterations(self) -> int:
        return 1 if self.offsets_bytes is None else len(self.offsets_bytes)

    def addresses(self, bases: Sequence[int], first: int, last: int) -> Int64Array:
        """Where the memory of iterations ``first`` to ``last`` begins, [iteration, address]."""
        row = np.array(bases, np.int64)[None]
        if self.offsets_bytes is None:
            return row[first:last]
        addresses: Int64Array = row + self.offsets_bytes[first:last]
        return addresses


class KernelLaunch(LaunchContext):
    """One launch of a `LaunchPlan`, at ``bases``: where its memory begins, bytes.

    ``correction``: its correction tensors in program memory, None where nothing is corrected.
    ``runner``: another way to run it. ``steps``, ``temporaries``: of a tiled launch that does more
    than to run the kernel per tile.
    """

    __slots__ = ("bases", "correction", "launch_plan", "runner", "steps", "temporaries")

    def __init__(
        self,
        plan: JobPlan,
        device: FlexDevice,
        launch_plan: LaunchPlan,
        bases: tuple[int, ...],
        keep_alive: Sequence[object] = (),
        runner: Runner | None = None,
    ) -> None:
        iterations, is_large = launch_plan.iterations, launch_plan.is_large
        super().__init__(plan, device, keep_alive, iterations, is_large, launch_plan.chunk)
        self.launch_plan = launch_plan
        self.bases = bases
        self.runner = runner
        self.correction: ProgramMemory | None = None
        self.steps: TileSteps | None = None
        self.temporaries: tuple[DeviceStorage, ...] = ()

    def use_steps(self, steps: TileSteps, temporaries: tuple[DeviceStorage, ...]) -> None:
        """Let the launch run ``steps``, one per iteration, with their temporaries."""
        self.steps = steps
        self.temporaries = temporaries
        self.iterations = len(steps)
        self.is_large = self.is_large or len(steps) > 1

    @property
    def is_bound(self) -> bool:
        """True if it is one pass over its memory, and nothing has to be corrected."""
        one_pass = self.steps is None and self.launch_plan.offsets_bytes is None
        return one_pass and self.correction is None

    def addresses(self, first: int, last: int) -> Int64Array:
        """Where the memory of iterations ``first`` to ``last`` begins, [iteration, address]."""
        if self.steps is not None:
            return self.steps.addresses[first:last]
        return self.launch_plan.addresses(self.bases, first, last)


def kernel_launch(context: LaunchContext) -> KernelLaunch:
    """``context`` as what it is where a kernel's own steps run."""
    assert isinstance(context, KernelLaunch)
    return context


def _size_bytes(launch: Launch) -> int:
    return sum(tensor.size_bytes for tensor in launch.arguments.values())
