"""What a kernel has become, and the text of it all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spyre.torch_backend.inductor.bundle_generation import KernelMemory
from spyre.torch_backend.inductor.kernel_notes import Notes
from spyre.torch_backend.inductor.kernel_passes.operations import KernelOperations
from spyre.torch_backend.inductor.kernel_passes.stages import KernelStages
from spyre.torch_backend.inductor.kernel_passes.unread import read_constants
from spyre.torch_backend.inductor.op_spec import Spec
from spyre.torch_backend.inductor.pass_printing import SILENT, PassPrinter
from spyre.torch_backend.inductor.spec_text import spec_text
from spyre.torch_backend.program.value import Ints


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """A tensor a kernel is given: host extents and strides (elements), torch dtype name."""

    sizes: Ints
    strides: Ints
    dtype: str


@dataclass(frozen=True, slots=True)
class FinishedKernel:
    """``arguments``: tensors by arg_index; ``constants``: (number, dtype) of those behind them.

    ``notes``: for people, how it came to be this kernel.
    """

    specs: tuple[Spec, ...]
    arguments: tuple[HostBuffer, ...]
    constants: tuple[tuple[float, str], ...]
    notes: Notes

    @property
    def segments(self) -> int:
        """Segments a bundle of baked addresses needs: one per argument, and one for the pool."""
        has_pool = KernelMemory.of(self.specs).pool_bytes > 0
        return len(self.arguments) + len(self.constants) + has_pool

    @property
    def text(self) -> str:
        """What generated code passes to ``async_compile.sdsc`` after the name."""
        arguments = [(a.sizes, a.strides, a.dtype) for a in self.arguments]
        more = f"arguments={arguments!r}"
        if self.constants:
            more += f", constants={list(self.constants)!r}"
        if self.notes:
            more += f", notes={dict(self.notes)!r}"
        return f"{spec_text(self.specs)}, {more}"


def finished_kernel(
    operations: KernelOperations,
    arguments: Sequence[HostBuffer],
    whole: Collection[int] = (),
    printer: PassPrinter | None = None,
) -> FinishedKernel:
    """The kernel of ``operations``, which are complete. ``whole``: regions that hold results of
    full size, whatever loops read them. ``printer``: of the graph it belongs to; None: nobody is
    shown its passes.
    """
    stages = KernelStages(operations, whole)
    stages.run(SILENT if printer is None else printer.of_kernel(stages.text))
    constants = operations.low.constants
    read = [constants[number] for number in read_constants(stages.operations)]
    numbers = tuple((c.number, c.dtype) for c in read)
    return FinishedKernel(tuple(stages.specs), tuple(arguments), numbers, stages.notes)
