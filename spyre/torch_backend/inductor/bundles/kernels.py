"""Kernels of generated code: `SpyreAsyncCompile` makes them, and they run on torch tensors.

The bundle is built with the kernel and loaded on a card when it first runs there. SPYRE_KEEP writes
it for spyre-run, with a launch_spec.json of the tensors it first ran on and with notes (work
division and its reasons, LX map, layouts). Notes are part of the generated code, so that a kernel
from a cache has them too.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs
from msgspec.structs import replace

from spyre.lru_cache import LruCache
from spyre.mlir.builder import BuiltBundle
from spyre.mlir.operation import Origin
from spyre.runtime.arguments import ArgumentSpec, KernelArguments, argument_name, spec_of_arguments
from spyre.runtime.program import LAUNCH_SPEC_FILE, Role, format_launch_spec
from spyre.torch_backend.eager.launch import number_on_card, ready_buffer, scratch_memory
from spyre.torch_backend.fallback import overlaps_itself
from spyre.torch_backend.inductor.base.compat import AsyncCompile
from spyre.torch_backend.inductor.base.layouts import HostExtents
from spyre.torch_backend.inductor.base.notes import LAYOUTS_FILE, NO_NOTES, Notes, note
from spyre.torch_backend.inductor.base.sources import NO_CALL, KernelCall
from spyre.torch_backend.inductor.bundles.generation import (
    ArgumentMemory,
    KernelMemory,
    generate_bundle,
)
from spyre.torch_backend.inductor.bundles.kernel_op import (
    Kernel,
    SizeSpec,
    evaluated,
    kernel_text,
    sizes_of_launch,
    smallest,
)
from spyre.torch_backend.inductor.bundles.op_spec_form import Spec, spec_text, to_op_specs
from spyre.torch_backend.program import CompiledProgram, show_program, shows_programs
from spyre.torch_backend.recorded_calls import CallRecorder, recorder_of_launch
from spyre.torch_backend.tensors import (
    DeviceBuffer,
    StorageLayout,
    allocate,
    argument_base,
    buffer_of,
    default_base,
    storage_elements,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice, LaunchPlan
EMITTER = "spyre.torch_backend.inductor"


def launch_spec_files(
    name: str,
    memory: KernelMemory,
    tensors: Sequence[StorageLayout],
    symbolic: bool,
    names: Sequence[str] = (),
    constants: Sequence[tuple[float, str]] = (),
    shapes: Sequence[tuple[int | str, ...]] = (),
) -> dict[str, bytes]:
    """launch_spec.json, by file name. ``tensors``: by arg_index, the last ones ``constants``.
    ``names``: parameter names of the function, for the first tensors. ``shapes``: of the first
    tensors, with names for sizes that only a launch knows; such tensors have default layouts.
    """
    arguments, first = [], len(tensors) - len(constants)
    for k, (use, tensor) in enumerate(zip(memory.arguments, tensors, strict=True)):
        given, value = names[k] if k < len(names) else "", None
        if k >= first:
            value = _finite(constants[k - first][0])
        extents = (tensor.shape, tensor.dtype, tensor.layout, tensor.strides)
        arguments.append(ArgumentSpec(k, argument_name(k), _role(use), *extents, given, value))
    known = KernelArguments(tuple(arguments), memory.pool_bytes)
    spec = spec_of_arguments(known, name, symbolic, EMITTER)
    if any(isinstance(n, str) for shape in shapes for n in shape):
        sized = [
            structs.replace(a, shape=shape, layout=None) if shape != a.shape else a
            for a, shape in zip(spec.args, shapes, strict=False)
        ]
        spec = structs.replace(spec, args=(*sized, *spec.args[len(shapes) :]))
    return {LAUNCH_SPEC_FILE: format_launch_spec(spec).encode()}


def _finite(number: float) -> float | None:
    """A number as JSON can write it."""
    return float(number) if math.isfinite(number) else None


def _role(expected: ArgumentMemory) -> Role:
    if not expected.is_output:
        return Role.INPUT
    return Role.INPUT_OUTPUT if expected.is_input else Role.OUTPUT


def layouts_text(memory: KernelMemory, tensors: Sequence[StorageLayout]) -> str:
    """A line per argument: host sizes, strides and dtype, device size and format."""
    lines = []
    for k, (use, tensor) in enumerate(zip(memory.arguments, tensors, strict=True)):
        role = "output" if not use.is_input else "inout" if use.is_output else "input"
        layout = tensor.layout
        lines.append(
            f"arg_{k} {role}: {tensor.dtype}{list(tensor.shape)}, strides {list(tensor.strides)}"
            f" -> {layout.device_dtype}{list(layout.device_size)}, {use.size_bytes:,} bytes"
        )
    if memory.pool_bytes:
        lines.append(f"pool: {memory.pool_bytes:,} bytes")
    return "\n".join(lines) + "\n"


CardKey = tuple[int, int]
MOST_SIZES = 256
"""Sets of sizes that a kernel caches."""


class InductorKernel:
    """A kernel of generated code. Any thread may run it.

    ``symbolic`` and ``unrolled``: form of ``bundle`` (see `generate_bundle`), which SPYRE_KEEP
    writes. The program that runs has symbolic addresses in any case, and its pool in the card's
    scratch memory. ``arguments``: host sizes, strides and dtype of the tensors it was compiled
    for, by arg_index: inputs in other layouts are copied. Without them, tensors are taken in the
    layouts they have. ``constants``: (number, dtype) of the arguments after the tensors.
    ``notes``: text files that SPYRE_KEEP writes beside the bundle. ``sizes``: known at launches
    only, which take them from their tensors; ``arguments`` may contain expressions of them as text:
    ``("s0", 128)``. ``memory``: at the smallest sizes, or at those of `at`. Errors as of
    `generate_bundle`.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        arguments: Sequence[HostExtents] = (),
        constants: Sequence[tuple[float, str]] = (),
        notes: Notes = NO_NOTES,
        sizes: Sequence[SizeSpec] = (),
        *,
        symbolic: bool = True,
        unrolled: bool = False,
    ) -> None:
        self.name, self.notes = name, notes
        self.kernel, self.sizes = tuple(kernel), tuple(sizes)
        self.arguments, self.constants = tuple(arguments), tuple(constants)
        self._symbolic, self._unrolled = symbolic, unrolled
        self._launched = generate_bundle(
            name, self.kernel, sizes, unrolled=unrolled, pool_argument=True
        )
        self._lock = threading.Lock()
        self._programs: dict[CardKey, CompiledProgram] = {}
        self._shown: list[KernelCall] = []
        self._at_sizes: LruCache[tuple[int, ...], InductorKernel] = LruCache(MOST_SIZES)
        self._values: dict[str, int] | None = None
        self._set_sizes(smallest(self.sizes))
        self._adds_pool = self.memory.pool_bytes > 0

    def _set_sizes(self, values: dict[str, int]) -> None:
        self.memory = KernelMemory.of(self.kernel, values, len(self.arguments))
        self._spans = [argument.size_bytes for argument in self.memory.arguments]
        if self.memory.pool_bytes:
            self._spans.append(self.memory.pool_bytes)
        extents: Sequence[Any] = self.arguments
        if values:
            extents = [(evaluated(n, values), evaluated(s, values), *o) for n, s, *o in extents]
        self._bases = [argument_base(*row) for row in extents]
        self._plans: dict[CardKey, LaunchPlan] = {}

    def at(self, sizes: dict[str, int]) -> InductorKernel:
        """The kernel for launches with ``sizes``, which runs the same programs."""
        key = tuple(sizes[size.name] for size in self.sizes)
        with self._lock:
            kernel = self._at_sizes.get(key)
            if kernel is None:
                kernel = copy.copy(self)
                kernel._values = sizes
                kernel._set_sizes(sizes)
                self._at_sizes.put(key, kernel)
        return kernel

    @functools.cached_property
    def bundle(self) -> BuiltBundle:
        """The bundle in the requested form, to which the runtime adds the pool; built on first
        access.
        """
        if self._symbolic and not self._adds_pool:
            return self._launched
        form = {"symbolic": self._symbolic, "unrolled": self._unrolled}
        return generate_bundle(self.name, self.kernel, self.sizes, **form)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The kernel in the document's form."""
        return to_op_specs(self.kernel)

    def run(self, *tensors: Any, call: KernelCall = NO_CALL) -> None:
        """Enqueue it on the current stream of the tensors' card.

        ``tensors``: inputs and outputs by arg_index, then all ``sizes`` in their order, or none of
        them. A tensor in another layout than the kernel expects is copied first, and copied back if
        it is written. ``call``: the call site in generated code. LaunchError SPY965 for sizes that
        the kernel does not take. RuntimeError for tensors of several cards.
        """
        if self.sizes and self._values is None:
            given = [value for value in tensors if isinstance(value, torch.Tensor)]
            numbers = [int(value) for value in tensors[len(given) :]]
            shapes = [tuple(tensor.shape) for tensor in given]
            values = sizes_of_launch(self.name, self.sizes, numbers, shapes)
            self.at(values).run(*given, call=call)
            return
        expected = len(self.memory.arguments) - len(self.constants)
        if len(tensors) != expected:
            raise TypeError(f"{self.name} takes {expected} tensors, not {len(tensors)}")
        buffers = [ready_buffer(tensor) for tensor in tensors]
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for k, base in enumerate(self._bases):
            tensor = tensors[k]
            if buffers[k].layout_id == base.layout_id and not tensor.storage_offset():
                continue
            # also if it is written: the kernel may write only a part of it
            copied = _copy_based(tensor, base)
            if self.memory.arguments[k].is_output:
                copies.append((tensor, copied))
            buffers[k] = buffer_of(copied)
        if (recorder := recorder_of_launch()) is not None:
            self._record(recorder, tensors, buffers, call)
        self._launch(buffers, call)
        for tensor, copied in copies:
            tensor.copy_(copied)

    def _launch(self, buffers: Sequence[DeviceBuffer], call: KernelCall) -> None:
        card = buffers[0].card
        if any(buffer.card is not card for buffer in buffers):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found spyre:"
                + " and spyre:".join(str(k) for k in sorted({b.card.index for b in buffers}))
            )
        memory = list(buffers)
        for buffer, expected in zip(buffers, self.memory.arguments, strict=False):
            if expected.is_output:
                buffer.zero_padded = False
        memory += [number_on_card(card, number, dtype) for number, dtype in self.constants]
        if not self._shown:
            self._show(memory, call)
        if self.memory.pool_bytes:
            memory.append(scratch_memory(card, self.memory.pool_bytes))
        program, plan = self.program_on(card), None
        if self._values is not None:
            key = (card.index, card.device.resets)
            if key not in self._plans:
                self._plans = {key: program.launch_plan(self._spans, self._values)}
            plan = self._plans[key]
        addresses = tuple([buffer.address_bytes for buffer in memory])
        kept = [buffer.memory for buffer in memory]
        origin = call if call.identity else None
        program.launch(card.streams.current, addresses, kept, plan, origin)

    def _show(self, memory: Sequence[DeviceBuffer], call: KernelCall) -> None:
        """Log and keep the bundle at its first run, if the environment asks for it."""
        with self._lock:
            if self._shown:
                return
            if shows_programs():
                show_program(self.name, spec_text(self.specs), self._with_spec(memory, call))
            self._shown.append(call)

    def _with_spec(self, memory: Sequence[DeviceBuffer], call: KernelCall) -> BuiltBundle:
        """The bundle with the launch_spec.json of a launch, and the notes."""
        tensors = [buffer.base for buffer in memory if buffer.base is not None]
        row = (self._symbolic, call.names, self.constants, self._named_shapes())
        files = launch_spec_files(self.name, self.memory, tensors, *row)
        texts = {**self.notes, LAYOUTS_FILE: layouts_text(self.memory, tensors)}
        files |= {name: text.encode() for name, text in texts.items()}
        bundle = self.bundle.with_origins([Origin(*each) for each in call.origins])
        return replace(bundle, extra_files={**bundle.extra_files, **files})

    def _record(
        self,
        recorder: CallRecorder,
        tensors: Sequence[torch.Tensor],
        buffers: Sequence[DeviceBuffer],
        call: KernelCall,
    ) -> None:
        """Record the program, and the inputs that it is launched with."""
        card = buffers[0].card
        numbers = [number_on_card(card, number, dtype) for number, dtype in self.constants]
        uses = enumerate(zip(tensors, self.memory.arguments, strict=False))
        inputs = {k: tensor for k, (tensor, use) in uses if use.is_input}
        recorder.launched(self._with_spec([*buffers, *numbers], call), inputs, self._values or {})

    def _named_shapes(self) -> list[tuple[int | str, ...]]:
        """Host sizes of the tensors, with names for ``sizes``; none without ``sizes``."""
        names = {size.name for size in self.sizes}
        pairs = zip(self.arguments, self._bases, strict=True) if names else ()
        return [
            tuple(n if n in names else b for n, b in zip(size, base.shape, strict=True))
            for (size, *_), base in pairs
        ]

    def program_on(self, card: FlexDevice) -> CompiledProgram:
        """The program as loaded on ``card``, loaded now if it is not; the same for all sizes."""
        key = (card.index, card.device.resets)
        compiled = self._programs.get(key)
        if compiled is not None:
            return compiled
        with self._lock:
            if key not in self._programs:
                identity = (self.name, kernel_text(self.kernel))
                program = CompiledProgram(card, self.name, self._launched, self._spans, identity)
                for old in [k for k in self._programs if k[0] == card.index]:
                    del self._programs[old]
                self._programs[key] = program
            return self._programs[key]


def _copy_based(tensor: torch.Tensor, base: StorageLayout) -> torch.Tensor:
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    is_default = base == default_base(size, stride, base.dtype)
    layout = None if is_default else base.layout
    copied = allocate(size, stride, tensor.dtype, tensor.device.index, layout)
    if not overlaps_itself(tensor):
        return copied.copy_(tensor)
    # an element that has several indices can be written under one of them only
    span = (storage_elements(tensor.size(), tensor.stride()),)
    copied.as_strided(span, (1,)).copy_(tensor.as_strided(span, (1,)))
    return copied


class SpyreAsyncCompile(AsyncCompile):  # type: ignore[misc]
    """Makes kernels at once; those of other devices are Inductor's. For any thread.

    ``symbolic`` and ``unrolled``: form of the bundles, as of `generate_bundle`.
    """

    def __init__(self, *, symbolic: bool = True, unrolled: bool = False) -> None:
        super().__init__()
        self.symbolic = symbolic
        self.unrolled = unrolled

    def sdsc(self, name: str, kernel: Kernel, **given: Any) -> InductorKernel:
        """The kernel of these operations; parameters and errors as of `InductorKernel`.

        Kernels with ``sizes`` have loops and symbolic addresses in any case.
        """
        if not given.get("sizes"):
            given |= {"symbolic": self.symbolic, "unrolled": self.unrolled}
        compiled = InductorKernel(name, kernel, **given)
        note(compiled)
        return compiled
