"""What a kernel keeps for one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyre.hw.nest import Int64Array
from spyre.runtime.flex.job import LaunchContext
from spyre.runtime.flex.launch_form import LaunchForm
from spyre.runtime.flex.program_memory import ProgramMemory
from spyre.runtime.flex.runner import Runner
from spyre.runtime.memory.storage import DeviceStorage

if TYPE_CHECKING:
    from spyre.runtime.flex.step_launch import StepLaunch


@dataclass(slots=True)
class KernelState:
    """What a kernel keeps for one launch.

    ``bases``: where its memory begins, bytes. ``memory``: correction tensors in program memory,
    None for a kernel without symbols. ``runner``: another way to run it. ``steps``, ``held``: of a
    launch with temporaries.
    """

    form: LaunchForm
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


def state_of(context: LaunchContext) -> KernelState:
    """The state of a kernel's launch."""
    state = context.state
    assert isinstance(state, KernelState)
    return state
