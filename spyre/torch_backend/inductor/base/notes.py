"""Notes on a compilation, for the observer behind `spyre.explain` and for SPYRE_KEEP's files, and
`PassPrinter`: the passes of a graph as text, in the form "LoopLevel IR" of the tiling document.

An observer gets the notes of the thread that it was set in. SPYRE_DUMP_PASSES writes passes to
files; the logger ``spyre.passes``, which ``TORCH_LOGS="+spyre"`` turns on, logs them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import sympy

from spyre import config
from spyre.errors import LaunchError
from spyre.torch_backend.inductor.base.compat import DefaultHandler, V, ir
from spyre.torch_backend.inductor.base.layouts import FixedTiledLayout, lane_of
from spyre.torch_backend.program import new_numbered_directory
from spyre.torch_backend.tensors import default_base

Notes = Mapping[str, str]
"""Text about a kernel by file name."""
NO_NOTES: Notes = MappingProxyType({})
DIVISIONS_FILE = "divisions.txt"
LX_FILE = "lx.txt"
SIZES_FILE = "sizes.txt"
TILING_FILE = "tiling.txt"
LAYOUTS_FILE = "layouts.txt"
TILING_REPORT = "tiling_report"
"""Attribute of an ir.Operation: why automatic tiling chose its loops."""

FX_GRAPH = "FX graph"
"""Stage: the FX graph that Inductor lowers."""
OPERATIONS = "ir.Operations"
"""Stage: the ir.Operations that the scheduler gets."""

_observer: ContextVar[list[Any] | None] = ContextVar("observer", default=None)


def is_observed() -> bool:
    """Whether this thread has an observer."""
    return _observer.get() is not None


def wants_notes() -> bool:
    """Whether kernels need notes, for an observer or for SPYRE_KEEP."""
    return is_observed() or config.KEEP.directory is not None


def note(item: Any) -> None:
    """Hand a kernel, or the (stage, text) of a graph, to this thread's observer, if any."""
    observer = _observer.get()
    if observer is not None:
        observer.append(item)


@contextmanager
def observing() -> Iterator[list[Any]]:
    """Collect the notes of this block, in order."""
    notes: list[Any] = []
    token = _observer.set(notes)
    try:
        yield notes
    finally:
        _observer.reset(token)


# --- passes ---------------------------------------------------------------------------------------

logger = logging.getLogger("spyre.passes")

PRINTED_ATTRIBUTES = (
    *("named_dims", "dim_hints", "op_it_space_splits", "loop_group_id", "loop_count"),
    "loop_tiled_dims",
)
"""Attributes that passes set on operations, in the order of printing."""
INFIX = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
INDENT = "    "

Graph = TypeVar("Graph")
Text = Callable[[Any], str]


class PassPrinter:
    """Runs the passes of one graph, and prints the graph before and after each if requested.

    ``text``: of the graph; None prints nothing. ``around``: the printer of the graph whose kernel
    this prints, with its passes behind those of the graph. One per graph, in one thread.
    """

    def __init__(self, text: Text | None, around: PassPrinter | None = None) -> None:
        self._text = text
        self._passes: int = 0 if around is None else around._passes
        self._around = around
        self._place: Path | None = None
        self._is_first = True

    def run(self, name: str, change: Callable[[Graph], Graph | None], graph: Graph) -> Graph:
        """Run a pass, which returns another graph, or None if it changes ``graph`` in place.

        LaunchError SPY951 if SPYRE_DUMP_PASSES cannot be written.
        """
        directory = config.DUMP_PASSES.directory
        if self._text is None or (directory is None and not logger.isEnabledFor(logging.DEBUG)):
            changed = change(graph)
            return graph if changed is None else changed
        self._passes += 1
        before = self._text(graph)
        self._write(directory, f"{self._passes:02d}-{name}.before.txt", before)
        if self._is_first:
            logger.debug("before %s:\n%s", name, before)
        self._is_first = False
        changed = change(graph)
        graph = graph if changed is None else changed
        after = self._text(graph)
        self._write(directory, f"{self._passes:02d}-{name}.after.txt", after)
        shown = "no change" if after == before else f"\n{after}"
        logger.debug("after %s: %s", name, shown)
        return graph

    def _write(self, directory: Path | None, name: str, text: str) -> None:
        if directory is None:
            return
        try:
            (self._directory(directory) / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise LaunchError(
                "SPY951",
                f"passes cannot be written to {directory}",
                expected="SPYRE_DUMP_PASSES to name a directory that may be written",
                found=error.strerror or type(error).__name__,
            ) from error

    def _directory(self, directory: Path) -> Path:
        """The directory of this graph, or of this kernel of a graph."""
        if self._place is None:
            kind = "graph"
            if self._around is not None:
                kind, directory = "kernel", self._around._directory(directory) / "kernels"
            directory.mkdir(parents=True, exist_ok=True)
            self._place = new_numbered_directory(directory, kind)
        return self._place


def format_operations(operations: Sequence[Any]) -> str:
    """A paragraph per ir.Operation: name, layout, attributes set by passes, ranges, body."""
    return "\n".join(line for op in operations for line in _operation_lines(op)) + "\n"


def _operation_lines(operation: Any) -> Iterator[str]:
    yield f"{operation.get_name()}: {type(operation).__name__}"
    layout = getattr(operation, "layout", None)
    if layout is not None:
        yield f"{INDENT}layout = {_layout_text(layout)}"
    for name in PRINTED_ATTRIBUTES:
        value = getattr(operation, name, None)
        if value and any(part is not None for part in value):
            yield f"{INDENT}{name} = {value!r}"
    data = getattr(operation, "data", None)
    if isinstance(data, ir.Loops):
        yield from (f"{INDENT}{line}" for line in _loops_lines(data))
    elif hasattr(operation, "inputs"):
        names = [i.get_name() for i in operation.inputs if hasattr(i, "get_name")]
        called = getattr(operation, "op_overload", None) or "?"
        yield f"{INDENT}{called}({', '.join(names)})"


def _layout_text(layout: Any) -> str:
    kind = type(layout).__name__
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return f"{kind}({layout.get_buffer().get_name()})"
    if not isinstance(layout, ir.Layout):
        return kind
    sizes, strides = list(layout.size), list(layout.stride)
    text = f"size={sizes}, stride={strides}"
    if isinstance(layout, FixedTiledLayout):
        text += f", device_size={list(layout.device_layout.device_size)}, lane={lane_of(layout)}"
    elif layout.device.type == "spyre" and all(str(n).isdigit() for n in (*sizes, *strides)):
        dtype = str(layout.dtype).removeprefix("torch.")
        numbers = (tuple(int(n) for n in row) for row in (sizes, strides))
        base = default_base(*numbers, dtype)
        text += f", device_size={list(base.layout.device_size)}"
    return f"{kind}({text})"


def _loops_lines(data: Any) -> Iterator[str]:
    kind = type(data).__name__
    ranges = list(data.ranges)
    reduced = list(getattr(data, "reduction_ranges", ()))
    yield f"{kind}("
    yield f"{INDENT}ranges={ranges},"
    if reduced:
        yield f"{INDENT}reduction_ranges={reduced}, reduction_type={data.reduction_type!r},"
    head = "inner_fn: "
    for k, line in enumerate(_body_lines(data, len(ranges), len(reduced))):
        yield f"{INDENT}{head if not k else ' ' * len(head)}{line}"
    yield ")"


class _BodyPrinter(DefaultHandler):  # type: ignore[misc]
    """Prints a body: a line per load, and expressions over the names of the buffers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in INFIX and len(args) == 2:
            return f"({args[0]} {INFIX[name]} {args[1]})"
        given = [str(a) for a in args]
        return f"{kwargs.get('asm', name)}({', '.join(given)})"

    def load(self, name: str, index: sympy.Expr) -> Any:
        self.lines.append(f"load({name}, {index})")
        return name

    def constant(self, value: Any, dtype: Any) -> Any:
        return str(value)


def _body_lines(data: Any, outer: int, reduced: int) -> list[str]:
    symbols = [sympy.Symbol(f"i{k}", integer=True) for k in range(outer)]
    inner = [sympy.Symbol(f"r{k}", integer=True) for k in range(reduced)]
    writer = _BodyPrinter()
    with V.set_ops_handler(writer):
        computed = data.inner_fn(symbols, inner) if reduced else data.inner_fn(symbols)
    parts = computed if isinstance(computed, tuple) else (computed,)
    values = ", ".join(str(getattr(part, "value", part)) for part in parts)
    result = f"{data.reduction_type}({values})" if reduced else values
    return [*writer.lines, f"return {result}"]
