"""Notes for people beside a kernel: how its work is divided and why, its LX map, its layouts.

They stand in generated code, so a kernel that comes from a cache has them too. Pure functions, for
any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from spyre.torch_backend.inductor.op_spec import OpSpec

if TYPE_CHECKING:
    from spyre.runtime.flex.spyre_tensor import SpyreTensor
    from spyre.torch_backend.inductor.bundle_generation import KernelMemory
    from spyre.torch_backend.inductor.division.plan import Division

Notes = Mapping[str, str]
"""Text by file name."""
NO_NOTES: Notes = MappingProxyType({})
DIVISIONS_FILE = "divisions.txt"
LX_FILE = "lx.txt"
SIZES_FILE = "sizes.txt"
TILING_FILE = "tiling.txt"
LAYOUTS_FILE = "layouts.txt"
TILING_REPORT = "tiling_report"
"""Attribute of an operation: what automatic tiling chose for the stretch it begins, and why."""


def divisions_text(specs: Sequence[OpSpec], divisions: Sequence[Division]) -> str:
    """A paragraph per operation, in the order of the kernel: cores, slices per dim, why."""
    pairs = enumerate(zip(specs, divisions, strict=True))
    return "\n".join(line for k, pair in pairs for line in _division_lines(k, *pair)) + "\n"


def _division_lines(number: int, spec: OpSpec, division: Division) -> Iterator[str]:
    slices = ", ".join(
        f"{symbol}: {extent} in {division.splits[symbol]}"
        for symbol, (extent, _) in spec.iteration_space.items()
    )
    order = ", ".join(str(s) for s in division.core_order if division.splits[s] > 1) or "-"
    yield f"{number} {spec.op}: cores {division.cores}; {slices}; numbered along {order}"
    yield from (f"    {line}" for line in division.why.splitlines())


def layouts_text(memory: KernelMemory, tensors: Sequence[SpyreTensor]) -> str:
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
    notes: Notes, memory: KernelMemory, tensors: Sequence[SpyreTensor]
) -> dict[str, bytes]:
    """``notes`` and layouts of a launch, as files. ``tensors``: by arg_index."""
    texts = {**notes, LAYOUTS_FILE: layouts_text(memory, tensors)}
    return {name: text.encode() for name, text in texts.items()}
