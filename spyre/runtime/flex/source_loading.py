"""Loading what was read or compiled, for runs that bring their own tensors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from spyre.runtime.bundle_arguments import read_arguments
from spyre.runtime.flex.blocking_stream import BlockingStream
from spyre.runtime.flex.job import JobPlan
from spyre.runtime.flex.loading import load_kernel
from spyre.runtime.kernel import Kernel
from spyre.runtime.kernel_source import KernelSource
from spyre.runtime.spyrecode.compiled_kernel import CompiledKernel, files_of_bundle
from spyre.runtime.spyrecode.init_binary import format_header

if TYPE_CHECKING:
    from spyre.mlir.bundle import Bundle


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
    if isinstance(source, CompiledKernel):
        return source.digest
    return files_of_bundle(cast("Bundle", source)).digest
