"""Kernels of generated code: `SpyreAsyncCompile` makes them, and they run on torch tensors.

The bundle is built with the kernel and loaded on a card when it first runs there. SPYRE_KEEP writes
it for spyre-run, with a launch_spec.json of the tensors it first ran on and with notes (work
division and its reasons, LX map, layouts). Notes are part of the generated code, so that a kernel
from a cache has them too.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs

from spyre.errors import UnsupportedError
from spyre.lru_cache import LruCache
from spyre.mlir.builder import BuiltBundle
from spyre.runtime.arguments import ArgumentSpec, KernelArguments, argument_name, spec_of_arguments
from spyre.runtime.program import LAUNCH_SPEC_FILE, Role, format_launch_spec
from spyre.torch_backend.eager.launch import number_on_card, ready_buffer, scratch_memory
from spyre.torch_backend.inductor.base.compat import AsyncCompile
from spyre.torch_backend.inductor.base.notes import LAYOUTS_FILE, NO_NOTES, Notes, note
from spyre.torch_backend.inductor.base.sources import NO_CALL, KernelCall
from spyre.torch_backend.inductor.bundles.generation import (
    ArgumentMemory,
    KernelMemory,
    generate_bundle,
)
from spyre.torch_backend.inductor.bundles.kernel_op import Kernel, kernel_text
from spyre.torch_backend.inductor.bundles.op_spec_form import Spec, spec_text, to_op_specs
from spyre.torch_backend.inductor.bundles.sizes import (
    SizeSpec,
    evaluated,
    sizes_of_launch,
    smallest,
)
from spyre.torch_backend.program import CompiledProgram, show_program, shows_programs
from spyre.torch_backend.tensors import (
    DeviceBuffer,
    StorageLayout,
    allocate,
    argument_base,
    buffer_of,
    default_base,
    relayout,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice, Passes
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
    rows = enumerate(zip(memory.arguments, tensors, strict=True))
    given = dict(enumerate(names))
    numbers = dict(zip(range(len(tensors) - len(constants), len(tensors)), constants, strict=True))
    arguments = [
        ArgumentSpec(
            k,
            argument_name(k),
            _role(e),
            t.shape,
            t.dtype,
            t.layout,
            t.strides,
            given.get(k, ""),
            _finite(numbers[k][0]) if k in numbers else None,
        )
        for k, (e, t) in rows
    ]
    known = KernelArguments(tuple(arguments), memory.pool_bytes)
    spec = spec_of_arguments(known, name, symbolic, EMITTER)
    if any(isinstance(n, str) for shape in shapes for n in shape):
        sized = zip(spec.args, [*shapes, *(a.shape for a in spec.args[len(shapes) :])], strict=True)
        args = tuple(
            structs.replace(a, shape=shape, layout=None) if shape != a.shape else a
            for a, shape in sized
        )
        spec = structs.replace(spec, args=args)
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


def note_files(
    notes: Notes, memory: KernelMemory, tensors: Sequence[StorageLayout]
) -> dict[str, bytes]:
    """``notes`` and layouts of a launch, as files. ``tensors``: by arg_index."""
    texts = {**notes, LAYOUTS_FILE: layouts_text(memory, tensors)}
    return {name: text.encode() for name, text in texts.items()}


CardKey = tuple[int, int]
DeviceDims = tuple[tuple[int, ...], tuple[int, ...]]
"""Device size, and per device dim the host elements a step goes along."""
HostExtents = (
    tuple[tuple[int, ...], tuple[int, ...], str]
    | tuple[tuple[int, ...], tuple[int, ...], str, DeviceDims]
)
"""Host sizes, strides (elements) and torch dtype name; its layout if it is not the default one."""


class InductorKernel:
    """A kernel of generated code. Any thread may run it.

    ``symbolic`` and ``unrolled``: form of ``bundle`` (see `generate_bundle`), which SPYRE_KEEP
    writes. The program that runs has symbolic addresses in any case, and its pool in the card's
    scratch memory. ``arguments``: host sizes, strides and dtype of the tensors it was compiled
    for, by arg_index: inputs in other layouts are copied. Without them, tensors of the kernel's
    device sizes are accepted. ``constants``: (number, dtype) of the arguments after the tensors.
    ``notes``: text files that SPYRE_KEEP writes beside the bundle. Errors as of `generate_bundle`.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        arguments: Sequence[HostExtents] = (),
        constants: Sequence[tuple[float, str]] = (),
        notes: Notes = NO_NOTES,
        *,
        symbolic: bool = True,
        unrolled: bool = False,
    ) -> None:
        self.name = name
        self.constants = tuple(constants)
        self.notes = notes
        self._bases = [argument_base(*extents) for extents in arguments]
        self.kernel = tuple(kernel)
        self.memory = KernelMemory.of(self.kernel)
        self._launched = generate_bundle(name, self.kernel, unrolled=unrolled, pool_argument=True)
        self._programs: dict[CardKey, CompiledProgram] = {}
        self._fitting: set[tuple[int, ...]] = set()
        self._lock = threading.Lock()
        self._symbolic, self._unrolled = symbolic, unrolled
        self._is_shown = False

    @functools.cached_property
    def bundle(self) -> BuiltBundle:
        """The bundle in the requested form; built on first access."""
        if self._symbolic and not self.memory.pool_bytes:
            return self._launched
        form = (self._symbolic, self._unrolled)
        return generate_bundle(self.name, self.kernel, symbolic=form[0], unrolled=form[1])

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The kernel in the document's form."""
        return to_op_specs(self.kernel)

    def run(self, *tensors: torch.Tensor, call: KernelCall = NO_CALL) -> None:
        """Enqueue it on the current stream of the tensors' card.

        ``tensors``: inputs and outputs by arg_index. One in another layout than the kernel expects
        is copied first, and copied back if it is written. ``call``: the call site in generated
        code. UnsupportedError SPY963 if a kernel without ``arguments`` gets an output in another
        layout, or an input that a copy does not fit. RuntimeError for tensors of several cards.
        """
        expected = self.memory.arguments[: len(self.memory.arguments) - len(self.constants)]
        if len(tensors) != len(expected):
            raise TypeError(f"{self.name} takes {len(expected)} tensors, not {len(tensors)}")
        buffers = [ready_buffer(tensor) for tensor in tensors]
        layouts = tuple(buffer.layout_id for buffer in buffers)
        if self._bases:
            self._run_based(tensors, buffers, call)
            return
        if layouts not in self._fitting:
            fitting = [
                self._fitting_buffer(k, t, b, e)
                for k, (t, b, e) in enumerate(zip(tensors, buffers, expected, strict=True))
            ]
            if all(a is b for a, b in zip(fitting, buffers, strict=True)):
                self._fitting.add(layouts)
            buffers = fitting
        self._launch(buffers, call)

    def _run_based(
        self, tensors: Sequence[torch.Tensor], buffers: Sequence[DeviceBuffer], call: KernelCall
    ) -> None:
        """Run it; tensors in other layouts are copied before, and written ones back after."""
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        fitting = list(buffers)
        for k, (tensor, buffer, base) in enumerate(zip(tensors, buffers, self._bases, strict=True)):
            if buffer.layout_id == base.layout_id and not tensor.storage_offset():
                continue
            # also if it is written: the kernel may write only a part of it
            copy = _empty_based(tensor, base).copy_(tensor)
            if self.memory.arguments[k].is_output:
                copies.append((tensor, copy))
            fitting[k] = buffer_of(copy)
        self._launch(fitting, call)
        for tensor, copy in copies:
            tensor.copy_(copy)

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
        if not self._is_shown:
            self._show(memory, call)
        if self.memory.pool_bytes:
            memory.append(scratch_memory(card, self.memory.pool_bytes))
        self._enqueue(card, memory, call)

    def _enqueue(self, card: FlexDevice, memory: Sequence[DeviceBuffer], call: KernelCall) -> None:
        _enqueue_at(self.program_on(card), card, memory, call)

    def _show(self, memory: Sequence[DeviceBuffer], call: KernelCall) -> None:
        """Log and keep the bundle at its first run, if the environment asks for it."""
        with self._lock:
            if self._is_shown:
                return
            if shows_programs():
                tensors = [buffer.base for buffer in memory if buffer.base is not None]
                files = self._launch_spec_files(tensors, call.names)
                files |= note_files(self.notes, self.memory, tensors)
                parts = replace(self.bundle, extra_files={**self.bundle.extra_files, **files})
                show_program(self.name, spec_text(self.specs), parts)
            self._is_shown = True

    def _launch_spec_files(
        self, tensors: Sequence[StorageLayout], names: Sequence[str]
    ) -> dict[str, bytes]:
        return launch_spec_files(
            self.name, self.memory, tensors, self._symbolic, names, self.constants
        )

    def program_on(self, card: FlexDevice) -> CompiledProgram:
        """The program as loaded on ``card``, loaded now if it is not."""
        key = (card.index, card.device.resets)
        compiled = self._programs.get(key)
        if compiled is not None:
            return compiled
        with self._lock:
            if key not in self._programs:
                spans = [argument.size_bytes for argument in self.memory.arguments]
                if self.memory.pool_bytes:
                    spans.append(self.memory.pool_bytes)
                identity = (self.name, kernel_text(self.kernel))
                program = CompiledProgram(card, self.name, self._launched, spans, identity)
                self._programs = {k: p for k, p in self._programs.items() if k[0] != card.index}
                self._programs[key] = program
            return self._programs[key]

    def _fitting_buffer(
        self, number: int, tensor: torch.Tensor, buffer: DeviceBuffer, expected: ArgumentMemory
    ) -> DeviceBuffer:
        """The buffer of ``tensor``, or of a copy in default layout, laid out as ``expected``."""
        if _fits(buffer, expected):
            return buffer
        if not expected.is_output and not tensor.storage_offset():
            copy = ready_buffer(relayout(tensor))
            if _fits(copy, expected):
                return copy
        raise self._misfit(number, buffer, expected)

    def _misfit(
        self, number: int, buffer: DeviceBuffer, expected: ArgumentMemory
    ) -> UnsupportedError:
        base = buffer.base
        found = "no memory" if base is None else _layout_text(base.layout.device_size)
        if base is not None:
            found += f" of {base.layout.device_dtype}"
        sizes = " or ".join(map(_layout_text, expected.device_sizes))
        return UnsupportedError(
            "SPY963",
            f"{self.name}: argument {number} is laid out in another way than it was compiled for",
            expected=f"{sizes} of {expected.device_format}",
            found=found,
            hint="outputs, and inputs that are not whole tensors, are not copied to fit",
        )


def _enqueue_at(
    program: CompiledProgram,
    card: FlexDevice,
    memory: Sequence[DeviceBuffer],
    call: KernelCall,
    plan: Passes | None = None,
) -> None:
    addresses = tuple([buffer.address_bytes for buffer in memory])
    kept = [buffer.memory for buffer in memory]
    program.launch(card.streams.current, addresses, kept, plan, call if call.identity else None)


def _empty_based(like: torch.Tensor, base: StorageLayout) -> torch.Tensor:
    size, stride = tuple(like.size()), tuple(like.stride())
    is_default = base == default_base(size, stride, base.dtype)
    layout = None if is_default else base.layout
    return allocate(size, stride, like.dtype, like.device.index, layout)


def _fits(buffer: DeviceBuffer, expected: ArgumentMemory) -> bool:
    """True if a buffer has the expected format and device size, ignoring dims of one element."""
    if not expected.device_sizes:
        return buffer.base is not None
    if buffer.base is None:
        return False
    layout = buffer.base.layout
    known = {_without_ones(size) for size in expected.device_sizes}
    return layout.device_dtype == expected.device_format and (
        _without_ones(layout.device_size) in known
    )


def _without_ones(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in size if n != 1)


def _layout_text(size: Sequence[int]) -> str:
    return f"device size {list(size)}"


MOST_SIZES = 256
"""Sets of sizes that a kernel caches."""
DynamicExtents = (
    tuple[tuple[Any, ...], tuple[Any, ...], str]
    | tuple[tuple[Any, ...], tuple[Any, ...], str, DeviceDims]
)
"""`HostExtents` whose sizes and strides may be expressions of sizes."""


class DynamicKernel:
    """A kernel of generated code whose ``sizes`` each launch takes from its tensors.

    Any thread may run it. ``arguments``: host extents of all tensors, with expressions of sizes as
    text: ``("s0", 128)``. Otherwise like `InductorKernel`. Errors as of `generate_bundle`.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        sizes: Sequence[SizeSpec],
        arguments: Sequence[DynamicExtents],
        constants: Sequence[tuple[float, str]] = (),
        notes: Notes = NO_NOTES,
    ) -> None:
        self.name = name
        self.sizes = tuple(sizes)
        self.arguments = tuple(arguments)
        self.constants = tuple(constants)
        self.notes = notes
        self.kernel = tuple(kernel)
        self.memory = KernelMemory.of(self.kernel, smallest(sizes))
        self.launched = generate_bundle(name, self.kernel, sizes, pool_argument=True)
        self._kernels: LruCache[tuple[int, ...], _KernelAtSizes] = LruCache(MOST_SIZES)
        self._programs: dict[CardKey, CompiledProgram] = {}
        self._lock = threading.Lock()
        self.is_shown = False

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The kernel in the document's form."""
        return to_op_specs(self.kernel)

    @property
    def bundle(self) -> BuiltBundle:
        """The bundle for `spyre-run`, to which the runtime adds the pool."""
        if not self.memory.pool_bytes:
            return self.launched
        return generate_bundle(self.name, self.kernel, self.sizes)

    def run(self, *given: Any, call: KernelCall = NO_CALL) -> None:
        """Enqueue it: tensors by arg_index, then all sizes in their order, or none of them.

        LaunchError SPY965 for sizes it does not take; other errors as of `InductorKernel.run`.
        """
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        numbers = [int(value) for value in given[len(tensors) :]]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        self.at(sizes_of_launch(self.name, self.sizes, numbers, shapes)).run(*tensors, call=call)

    def at(self, sizes: dict[str, int]) -> InductorKernel:
        """The kernel for launches with ``sizes``."""
        key = tuple(sizes[size.name] for size in self.sizes)
        with self._lock:
            kernel = self._kernels.get(key)
            if kernel is None:
                kernel = _KernelAtSizes(self, sizes)
                self._kernels.put(key, kernel)
        return kernel

    def program_on(self, card: FlexDevice, spans_bytes: Sequence[int]) -> CompiledProgram:
        """The program as loaded on ``card``, the same for all sizes."""
        key = (card.index, card.device.resets)
        with self._lock:
            if key not in self._programs:
                identity = (self.name, kernel_text(self.kernel))
                program = CompiledProgram(card, self.name, self.launched, spans_bytes, identity)
                self._programs = {k: p for k, p in self._programs.items() if k[0] != card.index}
                self._programs[key] = program
            return self._programs[key]


class _KernelAtSizes(InductorKernel):
    """A `DynamicKernel` over tensors of known sizes; the program is that of the kernel."""

    def __init__(self, dynamic: DynamicKernel, sizes: dict[str, int]) -> None:
        self.dynamic, self.sizes = dynamic, sizes
        self.name, self.constants, self.notes = dynamic.name, dynamic.constants, dynamic.notes
        self.kernel = dynamic.kernel
        self.memory = KernelMemory.of(dynamic.kernel, sizes, len(dynamic.arguments))
        self._bases = [
            argument_base(evaluated(size, sizes), evaluated(stride, sizes), *others)
            for size, stride, *others in dynamic.arguments
        ]
        self._forms: dict[CardKey, Passes] = {}
        self._lock = threading.Lock()
        self._is_shown = dynamic.is_shown

    @property
    def bundle(self) -> BuiltBundle:
        return self.dynamic.bundle

    def _enqueue(self, card: FlexDevice, memory: Sequence[DeviceBuffer], call: KernelCall) -> None:
        spans = [argument.size_bytes for argument in self.memory.arguments]
        if self.memory.pool_bytes:
            spans.append(self.memory.pool_bytes)
        program = self.dynamic.program_on(card, spans)
        key = (card.index, card.device.resets)
        if key not in self._forms:
            self._forms = {key: program.passes(spans, self.sizes)}
        _enqueue_at(program, card, memory, call, self._forms[key])

    def _launch_spec_files(
        self, tensors: Sequence[StorageLayout], given: Sequence[str]
    ) -> dict[str, bytes]:
        self.dynamic.is_shown = True
        names = {size.name for size in self.dynamic.sizes}
        shapes = [
            tuple(n if n in names else b for n, b in zip(size, base.shape, strict=True))
            for (size, *_), base in zip(self.dynamic.arguments, self._bases, strict=True)
        ]
        return launch_spec_files(
            self.name, self.memory, tensors, True, given, self.constants, shapes
        )


class SpyreAsyncCompile(AsyncCompile):  # type: ignore[misc]
    """Makes kernels at once; those of other devices are Inductor's. For any thread.

    ``symbolic`` and ``unrolled``: form of the bundles, as of `generate_bundle`.
    """

    def __init__(self, *, symbolic: bool = True, unrolled: bool = False) -> None:
        super().__init__()
        self.symbolic = symbolic
        self.unrolled = unrolled

    def sdsc(
        self,
        name: str,
        kernel: Kernel,
        arguments: Sequence[HostExtents] = (),
        constants: Sequence[tuple[float, str]] = (),
        notes: Notes = NO_NOTES,
        sizes: Sequence[SizeSpec] = (),
    ) -> InductorKernel | DynamicKernel:
        """The kernel of these operations. Errors as of `generate_bundle`.

        ``arguments``: host sizes, strides and dtype of each tensor, by arg_index; without them,
        tensors of the kernel's device sizes are accepted. ``constants``: (number, dtype) of the
        arguments after the tensors. ``notes``: text by the file name that SPYRE_KEEP uses.
        ``sizes``: known at launches only; ``arguments`` may name them among their host sizes.
        """
        if sizes:
            sized = DynamicKernel(name, kernel, sizes, arguments, constants, notes)
            note(sized)
            return sized
        form = {"symbolic": self.symbolic, "unrolled": self.unrolled}
        compiled = InductorKernel(name, kernel, arguments, constants, notes, **form)
        note(compiled)
        return compiled
