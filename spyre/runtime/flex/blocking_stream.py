"""A stream whose calls wait: what the command line, cases and `spyre.run` submit their work to.

Every copy and launch is a job on a stream of its own, as everybody's is; errors are raised where
the work was submitted, and a new stream takes the place of one that has failed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spyre.hw.device import DeviceTensor
from spyre.runtime.flex.copies import bytes_to_device, host_like, to_device_plan, to_host_plan
from spyre.runtime.flex.flex_device import FlexDevice
from spyre.runtime.flex.flex_stream import FlexStream
from spyre.runtime.flex.job import JobPlan, LaunchContext
from spyre.runtime.flex.kernel_program import KernelProgram
from spyre.runtime.flex.runner import Runner
from spyre.runtime.host_tensor import HostTensor
from spyre.runtime.kernel import Launch


class BlockingStream:
    """Copies and launches on one card, one after another. For one thread at a time."""

    def __init__(self, device: FlexDevice) -> None:
        self.device = device
        self._stream = FlexStream(device, 0)

    def to_device(self, host: HostTensor, tensor: DeviceTensor) -> None:
        """Host tensor → device tensor; errors as of `DmaEngine.to_device`."""
        self._run(to_device_plan(host, tensor))

    def to_host(self, tensor: DeviceTensor, out: HostTensor | None = None) -> HostTensor:
        """Device tensor → ``out``, or a new host tensor; errors as of `DmaEngine.to_host`."""
        target = host_like(tensor) if out is None else out
        self._run(to_host_plan(tensor, target))
        return target

    def write_bytes(self, address_bytes: int, content: npt.NDArray[np.uint8], name: str) -> None:
        """Raw bytes → device memory."""
        self._run(bytes_to_device(content, address_bytes, name))

    def load(self, plan: JobPlan) -> None:
        """Run a plan that needs no tensors: the copy of a program binary."""
        self._run(plan)

    def launch(self, plan: JobPlan, launch: Launch, runner: Runner | None = None) -> object:
        """Run a kernel over tensors that were placed; what ``runner`` returned."""
        assert isinstance(plan.program, KernelProgram)
        return self._wait(plan.program.bind_launch(self.device, launch, runner))

    def _run(self, plan: JobPlan) -> None:
        self._wait(LaunchContext(plan, self.device, ()))

    def _wait(self, context: LaunchContext) -> object:
        outcome = self._stream.submit_launch(context)
        try:
            self._stream.synchronize()
        except BaseException:
            self._stream = FlexStream(self.device, 0)
            raise
        return outcome.detail


def blocking_stream_of(device: FlexDevice) -> BlockingStream:
    """The blocking stream of ``device``, made when first asked for."""
    found: BlockingStream | None = vars(device).get("_blocking_stream")
    if found is None:
        found = vars(device)["_blocking_stream"] = BlockingStream(device)
    return found
