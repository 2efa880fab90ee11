"""`SizedKernel`: one bundle for tensors of any size, where sizes stand in its specs by name."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from spyre.mlir.bundle import BundleParts
from spyre.torch_backend.allocation import default_base
from spyre.torch_backend.inductor.bundle_generation import KernelMemory, generate_bundle
from spyre.torch_backend.inductor.compiled_kernel import CardKey, CompiledKernel
from spyre.torch_backend.inductor.kept_arguments import launch_spec_files
from spyre.torch_backend.inductor.kernel_notes import NO_NOTES, Notes
from spyre.torch_backend.inductor.op_spec import SizeSpec, Spec
from spyre.torch_backend.inductor.size_values import (
    evaluated,
    sizes_of_launch,
    smallest,
    with_values,
)
from spyre.torch_backend.inductor.spec_text import spec_text
from spyre.torch_backend.program.compiled import CompiledProgram

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice
    from spyre.runtime.flex.launch_form import LaunchForm
    from spyre.runtime.flex.spyre_tensor import SpyreTensor

MOST_SIZES = 256
"""Sets of sizes a kernel remembers; the one used longest ago goes first."""
SizedExtents = tuple[tuple[Any, ...], tuple[Any, ...], str]
"""Host sizes, strides (elements; both may be expressions of sizes) and torch dtype name."""


class SizedKernel:
    """A kernel of generated code whose ``sizes`` are those of the tensors of each launch.

    Any thread may run it. ``arguments``: host extents of all tensors, in which expressions of sizes
    stand as text, as in ``("s0", 128)``. Else as `CompiledKernel`. Errors as of `generate_bundle`.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[Spec],
        sizes: Sequence[SizeSpec],
        arguments: Sequence[SizedExtents],
        constants: Sequence[tuple[float, str]] = (),
        notes: Notes = NO_NOTES,
    ) -> None:
        self.name = name
        self.specs = tuple(specs)
        self.sizes = tuple(sizes)
        self.arguments = tuple(arguments)
        self.constants = tuple(constants)
        self.notes = notes
        self.text = spec_text(specs)
        self.memory = KernelMemory.of(with_values(specs, smallest(sizes)))
        self.launched = generate_bundle(name, specs, sizes, pool_argument=True)
        self._kernels: OrderedDict[tuple[int, ...], _KernelAtSizes] = OrderedDict()
        self._programs: dict[CardKey, CompiledProgram] = {}
        self._lock = threading.Lock()
        self.is_shown = False

    @property
    def bundle(self) -> BundleParts:
        """The bundle as `spyre-run` takes it: the runtime adds the pool."""
        if not self.memory.pool_bytes:
            return self.launched
        return generate_bundle(self.name, self.specs, self.sizes)

    def run(self, *given: Any) -> None:
        """Enqueue it: tensors by arg_index, then all sizes in their order, or none of them.

        LaunchError SPY965 for sizes that it cannot be launched with; else as `CompiledKernel.run`.
        """
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        numbers = [int(value) for value in given[len(tensors) :]]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        self.at(sizes_of_launch(self.name, self.sizes, numbers, shapes)).run(*tensors)

    def at(self, sizes: dict[str, int]) -> CompiledKernel:
        """The kernel as launches of ``sizes`` see it."""
        key = tuple(sizes[size.name] for size in self.sizes)
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                found = self._kernels[key] = _KernelAtSizes(self, sizes)
                while len(self._kernels) > MOST_SIZES:
                    self._kernels.popitem(last=False)
            self._kernels.move_to_end(key)
        return found

    def program_on(self, card: FlexDevice, spans_bytes: Sequence[int]) -> CompiledProgram:
        """The program as loaded on ``card``, the same for all sizes."""
        key = (card.index, card.device.resets)
        with self._lock:
            if key not in self._programs:
                identity = (self.name, self.text)
                program = CompiledProgram(card, self.name, self.launched, spans_bytes, identity)
                self._programs = {k: p for k, p in self._programs.items() if k[0] != card.index}
                self._programs[key] = program
            return self._programs[key]


class _KernelAtSizes(CompiledKernel):
    """A `SizedKernel` over tensors of known sizes; the program is that of the kernel."""

    def __init__(self, kernel: SizedKernel, sizes: dict[str, int]) -> None:
        self.kernel, self.sizes = kernel, sizes
        self.name, self.text = kernel.name, kernel.text
        self.constants, self.notes = kernel.constants, kernel.notes
        self.specs = kernel.specs
        self.memory = KernelMemory.of(with_values(kernel.specs, sizes), len(kernel.arguments))
        self._bases = [
            default_base(evaluated(size, sizes), evaluated(stride, sizes), dtype)
            for size, stride, dtype in kernel.arguments
        ]
        self._forms: dict[CardKey, LaunchForm] = {}
        self._lock = threading.Lock()
        self._is_shown = kernel.is_shown

    @property
    def bundle(self) -> BundleParts:
        """That of the kernel."""
        return self.kernel.bundle

    def _enqueue(self, card: FlexDevice, memory: Sequence[SpyreTensor]) -> None:
        spans = [argument.size_bytes for argument in self.memory.arguments]
        if self.memory.pool_bytes:
            spans.append(self.memory.pool_bytes)
        program = self.kernel.program_on(card, spans)
        key = (card.index, card.device.resets)
        if key not in self._forms:
            self._forms = {key: program.form_of(spans, self.sizes)}
        addresses = [m.address_bytes for m in memory]
        program.launch(card.streams.current, addresses, memory, self._forms[key])

    def _launch_spec_files(self, tensors: Sequence[SpyreTensor]) -> dict[str, bytes]:
        self.kernel.is_shown = True
        names = {size.name for size in self.kernel.sizes}
        shapes = [
            tuple(n if n in names else b for n, b in zip(size, base.shape, strict=True))
            for (size, _, _), base in zip(self.kernel.arguments, self._bases, strict=True)
        ]
        return launch_spec_files(self.name, self.memory, tensors, True, shapes)
