"""launch_spec.json of a kernel: what its arguments were when it first ran.

With it a program kept by SPYRE_KEEP is run by spyre-run on tensors of the sizes it was compiled
for. Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from spyre.runtime.arguments.specs import (
    ArgumentSpec,
    KernelArguments,
    argument_name,
    spec_of_arguments,
)
from spyre.runtime.memory.storage import SpyreTensor
from spyre.runtime.program.launch_spec import LAUNCH_SPEC_FILE, Role, format_launch_spec
from spyre.torch_backend.inductor.bundles.generation import ArgumentMemory, KernelMemory

EMITTER = "spyre.torch_backend.inductor"


def launch_spec_files(
    name: str,
    memory: KernelMemory,
    tensors: Sequence[SpyreTensor],
    symbolic: bool,
    shapes: Sequence[tuple[int | str, ...]] = (),
) -> dict[str, bytes]:
    """The file by its name. ``tensors``: by arg_index. ``shapes``: of the first of them, where
    names stand for sizes that only a launch knows; those have default layouts.
    """
    arguments = [
        ArgumentSpec(k, argument_name(k), _role(e), t.shape, t.dtype, t.layout, t.strides)
        for k, (e, t) in enumerate(zip(memory.arguments, tensors, strict=True))
    ]
    known = KernelArguments(tuple(arguments), memory.pool_bytes)
    spec = spec_of_arguments(known, name, symbolic, EMITTER)
    if any(isinstance(n, str) for shape in shapes for n in shape):
        sized = zip(spec.args, [*shapes, *(a.shape for a in spec.args[len(shapes) :])], strict=True)
        args = tuple(
            replace(a, shape=shape, layout=None) if shape != a.shape else a for a, shape in sized
        )
        spec = replace(spec, args=args)
    return {LAUNCH_SPEC_FILE: format_launch_spec(spec).encode()}


def _role(expected: ArgumentMemory) -> Role:
    if not expected.is_output:
        return Role.INPUT
    return Role.INPUT_OUTPUT if expected.is_input else Role.OUTPUT
