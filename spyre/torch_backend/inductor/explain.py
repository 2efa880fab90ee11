"""`explain`: print how a function is compiled, from its FX graph to the slices of the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from spyre.errors import LaunchError
from spyre.torch_backend.inductor.base import notes
from spyre.torch_backend.inductor.bundles.kernel_op import KernelOp, operations_in
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel
from spyre.torch_backend.inductor.bundles.op_spec_form import (
    LoopSpec,
    OpSpec,
    Spec,
    TensorArg,
    operations_of,
)
from spyre.torch_backend.inductor.division import core_slices

if TYPE_CHECKING:
    from rich.table import Table

_SECTIONS = {
    notes.SIZES_FILE: "sizes",
    notes.TILING_FILE: "automatic tiling",
    notes.DIVISIONS_FILE: "work division",
}
MOST_CORES_SHOWN = 4
WIDTH = 120


class CompileExplanation(msgspec.Struct, frozen=True):
    """The compiled stages of one call, in order; ``str`` gives a report.

    ``graphs``, ``operations``: FX graphs and ir.Operations as text. ``kernels``: operations, notes
    and bundles.
    """

    graphs: tuple[str, ...]
    operations: tuple[str, ...]
    kernels: tuple[InductorKernel, ...]

    def __str__(self) -> str:
        return "\n".join(_sections(self))

    def __repr__(self) -> str:
        return f"<Explanation of {len(self.graphs)} graphs, {len(self.kernels)} kernels>"


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> CompileExplanation:
    """Compile ``function`` without caches, call it once, and print all stages down to its kernels.

    ``function``: as for torch.compile, with arguments on spyre. LaunchError SPY969 if nothing is
    compiled for the card, and errors of torch.compile. Resets Dynamo: other compiled functions are
    compiled again.
    """
    torch.compiler.reset()
    with notes.observing() as observed, torch.compiler.config.patch(force_disable_caches=True):
        torch.compile(function)(*args, **kwargs)
    explanation = CompileExplanation(
        _texts(observed, notes.FX_GRAPH),
        _texts(observed, notes.OPERATIONS),
        tuple(item for item in observed if isinstance(item, InductorKernel)),
    )
    if not explanation.kernels:
        raise LaunchError(
            "SPY969",
            "no kernel was compiled for the card",
            expected="a function of tensors on spyre",
            found=f"{len(explanation.graphs)} graphs on spyre, none with device operations",
        )
    print(explanation)
    return explanation


def _texts(observed: Sequence[Any], stage: str) -> tuple[str, ...]:
    pairs = (item for item in observed if isinstance(item, tuple))
    return tuple(text for at, text in pairs if at == stage)


def _sections(explanation: CompileExplanation) -> Iterator[str]:
    pairs = zip(explanation.graphs, explanation.operations, strict=False)
    for number, (graph, lines) in enumerate(pairs, 1):
        yield f"=== FX graph {number}, as Inductor lowers it ===\n{graph.strip()}\n"
        yield f"=== its ir.Operations, before they are scheduled ===\n{lines}"
    for kernel in explanation.kernels:
        yield from _kernel_sections(kernel)


def _kernel_sections(kernel: InductorKernel) -> Iterator[str]:
    specs = list(operations_of(kernel.specs))
    yield f"=== kernel {kernel.name}: {len(specs)} operations ===\n{_outline(kernel.specs)}\n"
    for number, spec in enumerate(specs):
        space = ", ".join(f"{s}: {extent}" for s, (extent, _) in spec.iteration_space.items())
        table = _table(("tensor", "where", "format", "device size", "coordinates"))
        for arg in spec.args:
            table.add_row(*_tensor_row(arg))
        yield _text(f"{number} {spec.op} over {space}", table)
    for file, title in _SECTIONS.items():
        if file in kernel.notes:
            yield f"--- {title} ---\n{kernel.notes[file]}"
    for number, op in enumerate(operations_in(kernel.kernel)):
        yield _text(f"{number} {op.name}: elements by core", _core_table(op))
    if notes.LX_FILE in kernel.notes:
        yield f"--- scratchpads ---\n{kernel.notes[notes.LX_FILE]}"
    size = f"{len(kernel.bundle.operations)} SDSCs, pool of {kernel.memory.pool_bytes:,} bytes"
    yield f"--- bundle ---\n{size}\n"


def _outline(specs: Sequence[Spec], indent: str = "  ") -> str:
    lines = []
    for spec in specs:
        if isinstance(spec, OpSpec):
            lines.append(f"{indent}{spec.op}")
        elif isinstance(spec, LoopSpec):
            lines.append(f"{indent}{spec.count} times:")
            lines.append(_outline(spec.body, f"{indent}  "))
    return "\n".join(lines)


def _table(columns: Sequence[str]) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _text(title: str, table: Table) -> str:
    from rich.console import Console

    console = Console(width=WIDTH, color_system=None, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join([title, *(line.rstrip() for line in captured.get().splitlines() if line)])


def _tensor_row(arg: TensorArg) -> tuple[str, ...]:
    name = f"arg_{arg.arg_index}" if arg.arg_index >= 0 else "intermediate"
    where = ", ".join(f"{kind} {start:#x}" for kind, start in arg.allocation.items())
    return (
        f"{'in ' if arg.is_input else 'out'} {name}",
        where,
        str(arg.device_dtype),
        str([int(n) for n in arg.device_size]),
        ", ".join(map(str, arg.device_coordinates)),
    )


def _core_table(op: KernelOp) -> Table:
    """A table of the elements of each dim for the first cores and the last one."""
    splits = dict(zip(op.symbols, op.splits, strict=True))
    slices = core_slices([op.symbols[k] for k in op.core_order], splits)
    cores = max((len(row) for row in slices.values()), default=1)
    table = _table(("core", *op.symbols))
    for core in sorted({*range(min(cores, MOST_CORES_SHOWN)), cores - 1}):
        cells = []
        for symbol, extent in zip(op.symbols, op.extents, strict=True):
            step = -(-extent // splits[symbol])
            begin = int(slices[symbol][core]) * step
            cells.append(f"{begin}-{min(begin + step, extent) - 1}")
        table.add_row(str(core), *cells)
    return table
