"""Checks on addresses: alignment, ranges of HBM and LX, spans, overlaps, symbol ids.

Part of the rule table of :mod:`.inspection`. Rules: SuperDSC reference §5, §6.1, §12 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from spyre.dtypes import STICK_BYTES
from spyre.errors import Severity
from spyre.mlir.operation import Component, Tensor
from spyre.mlir.sdsc.meaning_rules import OperationRules
from spyre.mlir.sdsc.reading import RuleContext
from spyre.rules import Fault, RuleSet

HBM_BYTES = 128 << 30
LX_BYTES = 2 << 20
MAX_SPAN_BYTES = 256 << 20


_RANGES = {
    Component.HBM: (
        "SPY228",
        HBM_BYTES,
        "is outside device memory on",
        "an address from 0 to {}",
    ),
    Component.LX: (
        "SPY229",
        LX_BYTES,
        "does not fit the scratchpad of",
        "a start from 0 to {} bytes",
    ),
}
"""Code, capacity and words of each memory."""


def _starts(context: RuleContext) -> Iterator[Fault[str]]:
    for tensor in context.op.tensors:
        if tensor.symbolic:
            yield from _symbol_ids(context, tensor)
        else:
            yield from _addresses(context, tensor)
        span = context.footprints[tensor.index].span_bytes
        if span > MAX_SPAN_BYTES:
            message = f"one core touches {span} bytes of {tensor.name}"
            path, expected = context.node_path(tensor), f"at most {MAX_SPAN_BYTES} bytes"
            yield Fault("SPY235", path, message, expected, str(span))


def _addresses(context: RuleContext, tensor: Tensor) -> Iterator[Fault[str]]:
    """Real compilers write starts within a stick (coarse tiling, real-bundles.md); they run."""
    path = context.start_path(tensor)
    for core, start in _first(context, tensor, lambda start: start % STICK_BYTES != 0):
        message = f"{tensor.name} does not start on a stick on core {core}"
        yield Fault("SPY227", path, message, "a multiple of 128", str(start))
    code, capacity_bytes, misplaced, expected = _RANGES[tensor.component]
    limit = capacity_bytes - context.footprints[tensor.index].span_bytes
    for core, start in _first(context, tensor, lambda start: not 0 <= start <= limit):
        message = f"{tensor.name} {misplaced} core {core}"
        yield Fault(code, path, message, expected.format(limit), str(start))


def _symbol_ids(context: RuleContext, tensor: Tensor) -> Iterator[Fault[str]]:
    path = context.start_path(tensor)
    if tensor.component is Component.LX:
        message = f"{tensor.name} is in LX, whose addresses are never symbolic"
        yield Fault("SPY230", path, message, "literal addresses")
        return
    for core, start in _first(context, tensor, lambda start: start >= 0):
        message = f"symbol id of {tensor.name} on core {core} is not negative"
        yield Fault("SPY230", path, message, "a negative id", str(start))


def _first(
    context: RuleContext, tensor: Tensor, is_bad: Callable[[int], bool]
) -> list[tuple[int, int]]:
    """The first core whose start address or symbol id is bad, with that; empty if none is."""
    if not any(map(is_bad, tensor.starts)):
        return []
    pairs = zip(context.op.cores, tensor.starts, strict=True)
    return [next(pair for pair in pairs if is_bad(pair[1]))]


def _overlaps(context: RuleContext) -> Iterator[Fault[str]]:
    """Literal addresses only; interleaved slices of one buffer share a box and are not judged."""
    op = context.op
    for output in op.outputs:
        for operand in (*op.inputs, *op.index_tensors):
            if _clash(context, output, operand):
                message = f"output {output.name} overlaps {operand.name}"
                expected = "disjoint addresses, or the same on every core"
                found = f"starts {output.starts[0]} and {operand.starts[0]} on the first core"
                yield Fault("SPY236", context.start_path(output), message, expected, found)


def _clash(context: RuleContext, output: Tensor, operand: Tensor) -> bool:
    if output.symbolic or operand.symbolic or output.component is not operand.component:
        return False
    if output.starts == operand.starts:
        return False
    lengths = _dense_bytes(context, output), _dense_bytes(context, operand)
    if 0 in lengths:
        return False
    if output.component is Component.LX:
        pairs = zip(output.starts, operand.starts, strict=True)
        return any(_meet(a, b, lengths) for a, b in pairs)
    return _boxes_meet(output.starts, operand.starts, lengths)


def _meet(first: int, second: int, lengths: tuple[int, int]) -> bool:
    return first < second + lengths[1] and second < first + lengths[0]


def _boxes_meet(first: tuple[int, ...], second: tuple[int, ...], lengths: tuple[int, int]) -> bool:
    """True if any core's piece of one tensor meets any core's piece of the other."""
    if max(first) + lengths[0] <= min(second) or max(second) + lengths[1] <= min(first):
        return False
    return any(_meet(a, b, lengths) for a in set(first) for b in set(second))


def _dense_bytes(context: RuleContext, tensor: Tensor) -> int:
    """Bytes one core touches of a tensor, or 0 when they are no single piece of memory."""
    op, sticks = context.op, tensor.sticks
    counts = (
        -(-op.tensor_extent(tensor, dim) // sticks.get(dim, 1))
        for dim in tensor.dims
        if tensor.holds(dim)
    )
    touched = STICK_BYTES * prod(counts)
    return touched if touched == context.footprints[tensor.index].span_bytes else 0


ADDRESS_RULES: OperationRules = RuleSet(
    {
        "SPY227": Severity.WARNING,
        "SPY228": Severity.ERROR,
        "SPY229": Severity.ERROR,
        "SPY230": Severity.ERROR,
        "SPY235": Severity.ERROR,
        "SPY236": Severity.WARNING,
    },
    (_starts, _overlaps),
)
"""Rules on addresses."""
