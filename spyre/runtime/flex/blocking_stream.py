"""A stream whose calls wait: what the command line, cases and `spyre.run` submit their work to.

Every copy and launch is a job on a stream of its own, as everybody's is; errors are raised where
the work was submitted, and a new stream takes the place of one that has failed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from spyre.hw.memory.device_memory import DeviceTensor
from spyre.runtime.arguments.host_tensor import HostTensor
from spyre.runtime.arguments.read import read_arguments
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.flex.job import (
    JobPlan,
    LaunchContext,
    bytes_to_device,
    host_like,
    to_device_plan,
    to_host_plan,
)
from spyre.runtime.flex.loaded_kernel import LoadedKernel, load_kernel
from spyre.runtime.flex.stream import FlexStream
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.kernel.launch import Launch
from spyre.runtime.kernel.runners import Runner
from spyre.runtime.program.compiled import CompiledBundle, KernelSource, files_of_bundle
from spyre.runtime.spyrecode.init_binary import format_header

if TYPE_CHECKING:
    from spyre.mlir.bundle import Bundle


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
        assert isinstance(plan.program, LoadedKernel)
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


def load_source_on(stream: BlockingStream, kernel: Kernel) -> JobPlan:
    """The plan of a kernel whose program is loaded on the card; its launches come bound.

    Of the binary only the header is copied: it is what the card is asked for, and the kernel is
    here already.
    """
    header = format_header(_digest(kernel.bundle))
    name = kernel.bundle.directory.resolve().name or "bundle"
    arguments_of = partial(read_arguments, kernel.bundle)
    plan, copy = load_kernel(stream.device, kernel, arguments_of, header, name)
    stream.load(copy)
    return plan


def _digest(source: KernelSource) -> str:
    if isinstance(source, CompiledBundle):
        return source.digest
    return files_of_bundle(cast("Bundle", source)).digest
