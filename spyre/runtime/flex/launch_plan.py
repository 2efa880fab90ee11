"""What launches over tensors of one signature have in common: how the kernel runs over them.

A form is found once per signature: the kernel as it is, or retargeted to tiles of larger tensors
with the offset of every tile. Launches of a form differ by addresses only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from spyre.layout.access_map import Int64Array
from spyre.runtime.arguments.specs import KernelArguments
from spyre.runtime.flex.job import LARGE_BYTES, LaunchContext
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.kernel.launch import Launch, LaunchShape
from spyre.runtime.kernel.runners import Runner
from spyre.runtime.memory.storage import DeviceStorage, ProgramMemory
from spyre.runtime.tiling.options import TilingOptions

if TYPE_CHECKING:
    from spyre.runtime.tiling.execute import StepLaunch, TiledLaunch, TilingKernel
    from spyre.runtime.tiling.tile_plan import TilePlan

CHUNK_BYTES = 1 << 26
"""Tensor bytes that tiles run over in one go: some milliseconds."""


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """Immutable; any thread may use it.

    ``kernel``: what runs, once per iteration. ``offsets_bytes``: int64 [iteration, address], of
    each tile's corner from the start of its tensor; None for one pass. ``plan``: the tiles, None
    for one pass of the kernel as it is. ``names``: of the memory at each address.
    """

    kernel: Kernel
    shape: LaunchShape
    names: tuple[str, ...]
    size_bytes: int
    offsets_bytes: Int64Array | None = None
    plan: TilePlan | None = None

    @property
    def is_large(self) -> bool:
        """True if a launch is worth a second thread."""
        return self.size_bytes > LARGE_BYTES

    @cached_property
    def chunk(self) -> int:
        """Iterations that run in one go."""
        return min(max(CHUNK_BYTES * self.iterations // max(self.size_bytes, 1), 1), 4096)

    @property
    def iterations(self) -> int:
        """Passes over the kernel."""
        return 1 if self.offsets_bytes is None else len(self.offsets_bytes)

    def addresses(self, bases: Sequence[int], first: int, last: int) -> Int64Array:
        """Where the memory of iterations ``first`` to ``last`` begins, [iteration, address]."""
        row = np.array(bases, np.int64)[None]
        if self.offsets_bytes is None:
            return row[first:last]
        found: Int64Array = row + self.offsets_bytes[first:last]
        return found


class LaunchPlans:
    """The forms of one kernel's launches. One thread at a time (whoever binds holds a lock)."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._tiling: dict[tuple[tuple[str, int], ...], TilingKernel] = {}

    def bound(self, launch: Launch) -> LaunchPlan:
        """One pass over tensors that somebody else has checked."""
        return _one_pass(self.kernel, launch)

    def find(
        self, launch: Launch, arguments: KernelArguments, options: TilingOptions
    ) -> tuple[LaunchPlan, TilingKernel]:
        """The form of ``launch``; TilingError and LaunchError SPY850-SPY862 when there is none."""
        from spyre.runtime.tiling.execute import TiledLaunch

        tiling = self._tiling_of(arguments, launch.values)
        if tiling.matches(launch):
            return _one_pass(self.kernel, launch), tiling
        plan = tiling.plan(launch, options)
        if not plan.is_tiled and all(tensor.map.is_identity for tensor in plan.tensors):
            return _one_pass(self.kernel, launch), tiling
        return _tiles(TiledLaunch(tiling, launch, plan)), tiling

    def _tiling_of(self, arguments: KernelArguments, values: Mapping[str, int]) -> TilingKernel:
        from spyre.runtime.tiling.execute import TilingKernel

        key = tuple(sorted(values.items()))
        if key not in self._tiling:
            self._tiling[key] = TilingKernel(self.kernel, arguments, values)
        return self._tiling[key]


def _one_pass(kernel: Kernel, launch: Launch) -> LaunchPlan:
    return LaunchPlan(kernel, kernel.shape_of(launch), launch.names, _size_bytes(launch))


def _tiles(tiled: TiledLaunch) -> LaunchPlan:
    from spyre.runtime.tiling.tile_steps import Compute

    plan, launch = tiled.plan, tiled.launch
    first = Compute(0)
    kernel = tiled.kernel_of(first)
    shape = kernel.shape_of(tiled.launch_of(first))
    place = {tensor.expected.arg_index: k for k, tensor in enumerate(plan.tensors)}
    offsets_bytes = np.zeros((plan.iterations, len(shape.indices)), np.int64)
    for column, index in enumerate(shape.indices):
        if index in place:
            offsets_bytes[:, column] = plan.offsets_bytes[:, place[index]]
    return LaunchPlan(kernel, shape, launch.names, _size_bytes(launch), offsets_bytes, plan)


def _size_bytes(launch: Launch) -> int:
    return sum(tensor.size_bytes for tensor in launch.arguments.values())


@dataclass(slots=True)
class LaunchState:
    """What a kernel keeps for one launch.

    ``bases``: where its memory begins, bytes. ``memory``: correction tensors in program memory,
    None for a kernel without symbols. ``runner``: another way to run it. ``steps``, ``held``: of a
    launch with temporaries.
    """

    form: LaunchPlan
    bases: tuple[int, ...]
    memory: ProgramMemory | None = None
    runner: Runner | None = None
    steps: StepLaunch | None = None
    held: tuple[DeviceStorage, ...] = ()

    @property
    def is_bound(self) -> bool:
        """True if it is one pass over its memory, and nothing has to be corrected."""
        one = self.steps is None and self.form.offsets_bytes is None
        return one and self.memory is None

    def addresses(self, first: int, last: int) -> Int64Array:
        """Where the memory of iterations ``first`` to ``last`` begins, [iteration, address]."""
        if self.steps is not None:
            return self.steps.addresses[first:last]
        return self.form.addresses(self.bases, first, last)


def state_of(context: LaunchContext) -> LaunchState:
    """The state of a kernel's launch."""
    state = context.state
    assert isinstance(state, LaunchState)
    return state
