"""Checks on what goes beyond plain extents and slices: windows, symbolic dims, own work slices.

Part of the rule table of :mod:`.sdsc_rules`. Rules: SuperDSC reference §3, §9, §11 (sdsc.md),
operations reference §7 (ops.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from spyre.errors import Severity
from spyre.mlir.footprint import stick_elements
from spyre.mlir.operation import Padding, Window
from spyre.mlir.own_slices import SHUFFLE, own_slice_faults
from spyre.mlir.sdsc_dim_reader import SYMBOLIC_KEY, WINDOWS_KEY
from spyre.mlir.sdsc_subject import Rule, Subject, Violation


def _windows(subject: Subject) -> Iterator[Violation]:
    for dim, window in subject.op.windows.items():
        path = f"{subject.dsc_path}.N_.{WINDOWS_KEY}.{dim}"
        if window.window_dim == dim:
            yield Violation(path, f"the window of {dim} is that dim itself", "another dim", dim)
        for name in ("stride", "dilation"):
            if getattr(window, name) < 1:
                found = str(getattr(window, name))
                yield Violation(
                    f"{path}.{name}_",
                    f"{name} of the windows of {dim} is not positive",
                    "at least 1",
                    found,
                )
        yield from _paddings(window, dim, path)


def _paddings(window: Window, dim: str, path: str) -> Iterator[Violation]:
    for name, key in (
        ("pad_front", "padFront_"),
        ("pad_back", "padBack_"),
        ("unneeded", "unneededPad_"),
        ("unneeded_front", "unneededPadFront_"),
        ("unneeded_back", "unneededPadBack_"),
    ):
        value = getattr(window, name)
        if not 0 <= value <= max(window.total, 0):
            expected = f"0 to {window.total}"
            yield Violation(
                f"{path}.{key}", f"padding of {dim} is out of range", expected, str(value)
            )


def _window_spans(subject: Subject) -> Iterator[Violation]:
    """§3: totalSize_ is what the output positions read; less cannot be, more is left unread."""
    op = subject.op
    for dim, window in op.windows.items():
        span = window.span(op.extents[dim], op.extents[window.window_dim])
        if window.total < span:
            path = f"{subject.dsc_path}.N_.{WINDOWS_KEY}.{dim}.totalSize_"
            message = f"the windows of {dim} leave the input"
            yield Violation(path, message, f"at least {span}", str(window.total))


def _unread_input(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    for dim, window in op.windows.items():
        span = window.span(op.extents[dim], op.extents[window.window_dim])
        rest = window.total - window.unneeded - span
        if rest >= window.stride:
            path = f"{subject.dsc_path}.N_.{WINDOWS_KEY}.{dim}.totalSize_"
            message = f"{rest} elements of the input are read by no window of {dim}"
            yield Violation(path, message, f"{span + window.unneeded}", str(window.total))


def _padded_dims(subject: Subject) -> Iterator[Violation]:
    """A kind of padding needs a window whose padding it speaks of."""
    op = subject.op
    for tensor in op.tensors:
        for dim, kind in tensor.padding.items():
            window = op.windows.get(dim)
            path = f"{subject.node_path(tensor)}.padding_.{dim}"
            if window is None:
                message = f"{tensor.name} is padded along {dim}, over which no window slides"
                expected = ", ".join(op.windows) or Padding.NONE.value
                yield Violation(path, message, expected, kind.value)


def _symbolic_dims(subject: Subject) -> Iterator[Violation]:
    """§11: N_ holds the maximum; slices divide the granularity; sizes stay whole sticks."""
    op = subject.op
    for dim, size in op.symbolic_dims.items():
        path = f"{subject.dsc_path}.N_.{SYMBOLIC_KEY}.{dim}"
        if size.maximum != op.extents[dim]:
            message, expected = f"maximum of {dim} differs from N_", str(op.extents[dim])
            yield Violation(f"{path}.maxSize_", message, expected, str(size.maximum))
        if size.granularity < 1 or size.granularity > size.maximum:
            expected = f"1 to {size.maximum}"
            message = f"granularity of {dim} is out of range"
            yield Violation(f"{path}.granularity_", message, expected, str(size.granularity))
        elif size.granularity % _unit(subject, dim):
            message = f"sizes of {dim} cannot be divided into slices of whole sticks"
            expected = f"a multiple of {_unit(subject, dim)}"
            yield Violation(f"{path}.granularity_", message, expected, str(size.granularity))
        if size.symbol >= 0:
            place = f"{subject.dsc_path}.dimToSymbolMapping_.{dim}"
            message = f"symbol id of {dim} is not negative"
            yield Violation(place, message, "a negative id", str(size.symbol))


def _unit(subject: Subject, dim: str) -> int:
    """Slices times elements of the longest stick along ``dim``."""
    sticks = [stick_elements(t).get(dim, 1) for t in subject.op.tensors if t.holds(dim)]
    return subject.op.slices[dim] * max(sticks, default=1)


def _own_slices(subject: Subject) -> Iterator[Violation]:
    """§9: what another core holds must be there, and stay while it is read."""
    op = subject.op
    if op.name != SHUFFLE and not any(tensor.own_core_slices for tensor in op.tensors):
        return
    for fault in own_slice_faults(op):
        path = f"{subject.node_path(fault.tensor)}.coordinates_"
        yield Violation(path, fault.message, fault.expected, fault.found)


DIM_RULES: tuple[Rule, ...] = (
    Rule("SPY254", Severity.ERROR, _windows),
    Rule("SPY255", Severity.ERROR, _padded_dims),
    Rule("SPY256", Severity.ERROR, _window_spans),
    Rule("SPY257", Severity.WARNING, _unread_input),
    Rule("SPY258", Severity.ERROR, _symbolic_dims),
    Rule("SPY261", Severity.ERROR, _own_slices),
)
"""Rules on windows, symbolic dims and tensors' own work slices."""
