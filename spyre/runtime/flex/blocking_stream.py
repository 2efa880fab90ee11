"""A stream whose calls wait: what the command line, cases and `spyre.run` submit their work to.

Every copy and launch is a job on a stream of its own, as everybody's is; errors are raised where
the work was submitted, and a new stream takes the place of one that has failed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from spyre.hw.memory.device_memory import DeviceTensor
from spyre.runtime.arguments.host_tensor import HostTensor
from spyre.runtime.arguments.read import read_arguments
from spyre.runtime.flex.job import (
    JobPlan,
    LaunchContext,
    bytes_to_device,
    host_like,
    to_device_plan,
    to_host_plan,
)
from spyre.runtime.flex.launch_plan import LaunchPlan
from spyre.runtime.flex.loaded_kernel import LoadedKernel, load_kernel
from spyre.runtime.flex.stream import FlexStream
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.kernel.launch import Launch
from spyre.runtime.kernel.runners import ExecutedLaunch, Runner, run_recorded
from spyre.runtime.program.compiled import CompiledBundle, LoweredBundle, files_of_bundle
from spyre.runtime.spyrecode.init_binary import format_header

if TYPE_CHECKING:
    from spyre.mlir.bundle import Bundle
    from spyre.runtime.flex.device import FlexDevice


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

    def load(self, kernel: Kernel) -> LoadedKernel:
        """A kernel whose program is loaded on the card; its launches come bound.

        Of the binary only the header is copied: it is what the card is asked for, and the kernel is
        here already.
        """
        header = format_header(_digest(kernel.bundle))
        name = kernel.bundle.directory.resolve().name or "bundle"
        arguments_of = partial(read_arguments, kernel.bundle)
        loaded, copy = load_kernel(self.device, kernel, arguments_of, header, name)
        self._run(copy)
        return loaded

    def launch(
        self, kernel: LoadedKernel, launch: Launch, runner: Runner | None = None
    ) -> ExecutedLaunch:
        """Run a kernel over tensors that were placed; ``runner``: not plainly."""
        runner = runner or self.device.runner or run_recorded
        launch_plan = LaunchPlan.one_pass(kernel.kernel, launch)
        shown = self.device.is_recorded
        context = kernel.bind_at(
            self.device, launch_plan, launch.addresses, (), runner, is_corrected=shown
        )
        executed = self._wait(context)
        assert isinstance(executed, ExecutedLaunch)
        return replace(executed, name=kernel.name)

    def _run(self, plan: JobPlan) -> None:
        self._wait(LaunchContext(plan, self.device))

    def _wait(self, context: LaunchContext) -> object:
        outcome = self._stream.submit_launch(context)
        try:
            self._stream.synchronize()
        except BaseException:
            self._stream = FlexStream(self.device, 0)
            raise
        return outcome.detail


def _digest(bundle: LoweredBundle) -> str:
    if isinstance(bundle, CompiledBundle):
        return bundle.digest
    return files_of_bundle(cast("Bundle", bundle)).digest
