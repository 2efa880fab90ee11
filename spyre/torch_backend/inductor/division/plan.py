"""The passes of work division together: span reduction, matmul cost model, distribution of the
cores that are left; divisions that hints ask for; and the numbers of the cores.

Order and rules: hardware reference §4.1; core numbers: its step 7, and SDSC reference §6.1. A span
is how much memory a core's slice of a tensor lies in, from first to last byte; a core reaches 256
MiB of device memory per tensor (hardware reference §2). Spans are computed for many ways to divide
at once: arrays, one entry per way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from numbers import Integral

import numpy as np
import numpy.typing as npt

from spyre.errors import LaunchError, UnsupportedError
from spyre.hw.spec import CORES, STICK_BYTES
from spyre.torch_backend.inductor.bundles import LX, DeviceDim, KernelOp
from spyre.torch_backend.inductor.division.iteration import (
    DivisibleDim,
    Iteration,
    Splits,
    core_split,
    divisors,
    read_iteration,
    splits_within,
)
from spyre.torch_backend.inductor.division.matmul import PLANNERS, divide_matmul

# --- spans ------------------------------------------------------------------------------------

MAX_SPAN_BYTES = 256 << 20
"""What a core reaches of one tensor."""
_MIB = 1 << 20

logger = logging.getLogger(__name__)


def spans_bytes(iteration: Iteration, number: int, splits: Splits) -> npt.NDArray[np.int64]:
    """Span of tensor ``number`` per core for every row of ``splits`` (a column per dim), in bytes.

    The outermost device dim a core moves along at all decides: its steps times everything below.
    """
    spans = np.full(len(splits), STICK_BYTES, np.int64)
    for dim in reversed(iteration.op.device_dims(number)):
        steps = _steps_along(iteration, number, dim, splits)
        spans = np.where(steps > 1, steps * dim.pitch_bytes, spans)
    return spans


def _steps_along(
    iteration: Iteration, number: int, dim: DeviceDim, splits: Splits
) -> npt.NDArray[np.int64]:
    """Steps a core takes along a device dim, per row of ``splits``; all where an index does it."""
    op = iteration.op
    indirect = op.indirect_dim(number)
    if indirect >= 0 and op.tensors[number].pitches[indirect] == dim.pitch_bytes:
        return np.full(len(splits), dim.size, np.int64)
    steps = np.ones(len(splits), np.int64)
    for k, unit in dim.walked:
        steps += (iteration.dims[k].elements_per_core(splits[:, k]) - 1) // unit
    return steps


def reduce_spans(
    iteration: Iteration,
    cores: int,
    committed: Mapping[str, int],
    limit_bytes: int = MAX_SPAN_BYTES,
) -> dict[str, int]:
    """Pass 1: the splits needed so that spans fit, on top of ``committed``; only those over 1.

    Device dims are looked at from the outermost in, the dims that move along each are divided
    together: by what leaves the largest span that fits, else by what leaves the smallest.
    UnsupportedError SPY981 if several reduced dims would be divided.
    """
    splits = {symbol: committed.get(symbol, 1) for symbol in iteration.symbols}
    for number in device_tensors(iteration):
        for dim in iteration.op.device_dims(number):
            if _span(iteration, number, splits) <= limit_bytes:
                break
            splits |= _best_splits(iteration, number, dim, splits, cores, limit_bytes)
            if int(_steps_along(iteration, number, dim, _row(iteration, splits))[0]) > 1:
                break
    check_one_reduction(iteration, splits, "to fit the memory a core reaches")
    return {symbol: count for symbol, count in splits.items() if count > 1}


def _best_splits(
    iteration: Iteration,
    number: int,
    dim: DeviceDim,
    least: Mapping[str, int],
    cores: int,
    limit_bytes: int,
) -> dict[str, int]:
    """New splits of the dims that move along a device dim; the first of equally good ones."""
    inside = {iteration.symbols[k] for k, _ in dim.walked}
    options = [
        [n for n in own.splits(cores) if n >= least[own.symbol]]
        if own.symbol in inside and not own.kept_whole
        else [least[own.symbol]]
        for own in iteration.dims
    ]
    rows = splits_within(options, cores)
    if not len(rows):
        return {}
    spans = spans_bytes(iteration, number, rows)
    fits = spans <= limit_bytes
    best = int(np.argmax(np.where(fits, spans, -1)) if fits.any() else np.argmin(spans))
    return dict(zip(iteration.symbols, map(int, rows[best]), strict=True))


def device_tensors(iteration: Iteration) -> list[int]:
    """Numbers of the tensors in device memory: the limit does not concern the scratchpads."""
    return [k for k, tensor in enumerate(iteration.op.tensors) if tensor.memory != LX]


def check_one_reduction(iteration: Iteration, splits: Mapping[str, int], purpose: str) -> None:
    """UnsupportedError SPY981 if more than one reduced dim is divided."""
    divided = [s for s in iteration.symbols if s in iteration.reduced and splits.get(s, 1) > 1]
    if len(divided) > 1:
        raise UnsupportedError(
            "SPY981",
            f"{iteration.name} would have several reduced dims divided {purpose}",
            expected="at most one",
            found=splits_text({symbol: splits[symbol] for symbol in divided}),
            hint="tile the operation, or make its tensors smaller",
        )


def check_spans(
    iteration: Iteration, splits: Mapping[str, int], *, raises: bool = True
) -> list[str]:
    """What does not fit under the final ``splits``: UnsupportedError SPY980 (planner August), or
    a critical log record and a line per tensor (planner June) where ``raises`` is False.
    """
    lines: list[str] = []
    for number in device_tensors(iteration):
        span = _span(iteration, number, splits)
        if span <= MAX_SPAN_BYTES:
            continue
        error = _overflow(iteration, number, span, splits)
        if raises:
            raise error
        logger.critical("%s", error)
        lines.append(f"argument {number} spans {_mib(span)} per core, more than a core reaches")
    return lines


def _overflow(
    iteration: Iteration, number: int, span: int, splits: Mapping[str, int]
) -> UnsupportedError:
    return UnsupportedError(
        "SPY980",
        f"argument {number} of {iteration.name} lies too far apart for one core",
        expected=f"at most {_mib(MAX_SPAN_BYTES)} from first to last byte of a core's slice",
        found=f"{_mib(span)}, divided as {splits_text(splits)}",
        hint="tile the operation, or divide the dim of its outermost device coordinate",
    )


def _span(iteration: Iteration, number: int, splits: Mapping[str, int]) -> int:
    return int(spans_bytes(iteration, number, _row(iteration, splits))[0])


def _row(iteration: Iteration, splits: Mapping[str, int]) -> Splits:
    return np.array([[splits.get(symbol, 1) for symbol in iteration.symbols]], np.int64)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.6g} MiB"


def splits_text(splits: Mapping[str, int] | Iterable[tuple[str, int]]) -> str:
    """``c0:4, c1:8``: splits over 1, as every message and line writes them."""
    text = ", ".join(f"{symbol}:{count}" for symbol, count in dict(splits).items() if count > 1)
    return text or "one core"


# --- passes -----------------------------------------------------------------------------------


DIVISION_PASSES = SPAN, MATMUL_COST, DISTRIBUTION = (
    "span_reduction",
    "cost_model_matmul_division",
    "work_distribution",
)
"""Names of the passes, in their order."""


@dataclass(frozen=True, slots=True)
class WorkDivision:
    """How cores share an operation.

    ``splits``: per dim, in iteration order, how many cores share it (1: not divided).
    ``core_order``: dims in the order core numbers run through them, the fastest first.
    ``why``: a line per pass, what it did and on what grounds. ``before``: by name of an earlier
    pass, the dims that were divided after it.
    """

    splits: Mapping[str, int]
    core_order: tuple[str, ...]
    why: str
    before: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def cores(self) -> int:
        return prod(self.splits.values())

    def after(self, name: str) -> WorkDivision:
        """The division as the pass ``name`` of `DIVISION_PASSES` left it."""
        if name == DIVISION_PASSES[-1]:
            return self
        before = self.before.get(name, {})
        return replace(self, splits={symbol: before.get(symbol, 1) for symbol in self.splits})


_Before = Mapping[str, Mapping[str, int]]


def divide_op(
    op: KernelOp,
    cores: int = CORES,
    planner: str = "june",
    hints: Mapping[str, int] | None = None,
    *,
    committed: Mapping[str, int] | None = None,
    k_fast: bool = True,
    overflow_raises: bool = True,
) -> WorkDivision:
    """Divide ``op`` over at most ``cores`` cores (1 to 32).

    ``hints``: the division as the user wants it, dims not named undivided. ``committed``: splits
    that must not become smaller, as pass 1 makes them. ``planner``: a name of `PLANNERS`.
    ``k_fast``: as of `KernelOp`. ``overflow_raises``: False logs what no core can reach, as the
    June compiler does.

    LaunchError SPY982 for hints, cores or planners that cannot be; UnsupportedError SPY980 for
    slices of over 256 MiB, SPY981 for several divided reductions.
    """
    _check_request(cores, planner)
    iteration = read_iteration(op)
    before: _Before = {}
    if hints:
        splits = checked_splits(iteration, hints, cores, "a work division hint")
        lines = [f"hints: {splits_text(splits)}"]
    else:
        splits, lines, before = _planned(iteration, cores, planner, committed or {})
    lines += check_spans(iteration, splits, raises=overflow_raises)
    splits = {symbol: splits[symbol] for symbol in iteration.symbols}
    order = order_of(iteration, splits, k_fast=k_fast)
    return WorkDivision(splits, order, "\n".join(lines), before)


def with_division(op: KernelOp, division: WorkDivision) -> KernelOp:
    """``op`` shared by the cores as ``division`` says."""
    return replace(op, cores=tuple(division.splits[symbol] for symbol in op.symbols))


def _planned(
    iteration: Iteration, cores: int, planner: str, committed: Mapping[str, int]
) -> tuple[dict[str, int], list[str], _Before]:
    """Splits of all dims by the three passes, a line for each, and the splits after the first."""
    spans = reduce_spans(
        iteration, cores, checked_splits(iteration, committed, cores, "an earlier pass")
    )
    default = distribute(iteration, cores, spans)
    before: _Before = {SPAN: spans, MATMUL_COST: spans}
    lines = [f"{SPAN}: {_span_line(spans)}"]
    if spans:
        lines.append(f"matmul planner {planner}: not asked, splits are committed")
    else:
        choice = divide_matmul(iteration, cores, planner, default)
        lines.append(f"matmul planner {planner}: {choice.why}")
        if choice.splits is not None:
            lines.append(f"{DISTRIBUTION}: nothing left to divide")
            return choice.splits, lines, {**before, MATMUL_COST: choice.splits}
    lines.append(f"{DISTRIBUTION}: {_distribution_line(iteration, default)}")
    return default, lines, before


def _span_line(spans: Mapping[str, int]) -> str:
    if not spans:
        return "nothing to do, a core reaches every tensor"
    return f"{splits_text(spans)}, so that a core reaches its slices"


def _distribution_line(iteration: Iteration, splits: Mapping[str, int]) -> str:
    sizes = ", ".join(f"{dim.symbol}={dim.units}" for dim in iteration.dims)
    kept = [f"{dim.symbol} whole: {dim.kept_whole}" for dim in iteration.dims if dim.kept_whole]
    return "; ".join([f"{splits_text(splits)} of {sizes}", *kept])


def _check_request(cores: int, planner: str) -> None:
    if not 1 <= cores <= CORES:
        raise LaunchError(
            "SPY982",
            "an operation cannot be divided over these cores",
            expected=f"1 to {CORES}",
            found=str(cores),
        )
    if planner not in PLANNERS:
        raise LaunchError(
            "SPY982",
            "there is no such planner of matmul divisions",
            expected=", ".join(PLANNERS),
            found=planner,
        )


def distribute(iteration: Iteration, cores: int, committed: Mapping[str, int]) -> dict[str, int]:
    """Splits of all dims, ``committed`` ones as they are.

    Dims of the result are divided first, the largest (in units) before smaller ones, each as far
    as the cores left allow; what remains goes to the one reduced dim that can use most of it,
    unless a reduced dim is committed.
    """
    splits = dict.fromkeys(iteration.symbols, 1) | dict(committed)
    left = cores // prod(splits.values())
    free = [d for d in iteration.dims if splits[d.symbol] == 1 and not d.kept_whole]
    by_size = sorted(free, key=lambda dim: -dim.units)
    for dim in by_size:
        if dim.is_output:
            splits[dim.symbol] = core_split(dim.units, left)
            left //= splits[dim.symbol]
    reduced = [dim for dim in by_size if not dim.is_output]
    if left > 1 and reduced and all(splits[symbol] == 1 for symbol in iteration.reduced):
        best = _most_divisible(reduced, left)
        splits[best.symbol] = core_split(best.units, left)
    return splits


def _most_divisible(dims: list[DivisibleDim], cores: int) -> DivisibleDim:
    return max(dims, key=lambda dim: core_split(dim.units, cores))


def checked_splits(
    iteration: Iteration, asked: Mapping[str, int], cores: int, source: str
) -> dict[str, int]:
    """``asked`` as splits of all dims, those not named undivided (§4.1, step 6).

    LaunchError SPY982 unless every value is a positive integer that divides its dim and all of
    them together use at most ``cores``; UnsupportedError SPY981 for several reduced dims.
    ``source`` names who asked.
    """
    dims = {dim.symbol: dim for dim in iteration.dims}
    splits = dict.fromkeys(dims, 1)
    for symbol, value in asked.items():
        if symbol not in dims:
            names = ", ".join(map(str, dims))
            raise _refused(source, symbol, f"a dim of {iteration.name}: {names}", str(symbol))
        _check_value(dims[symbol], value, source)
        splits[symbol] = int(value)
    if prod(splits.values()) > cores:
        used = f"{prod(splits.values())} cores: {splits_text(splits)}"
        raise _refused(source, "all dims together", f"at most {cores} cores", used)
    check_one_reduction(iteration, splits, f"by {source}")
    return splits


def _check_value(dim: DivisibleDim, value: object, source: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise _refused(source, dim.symbol, "an integer from 1 on", repr(value))
    if dim.units % int(value):
        options = ", ".join(map(str, divisors(dim.units)))
        sticks = f" ({dim.elements} elements in units of {dim.unit})" if dim.unit > 1 else ""
        expected = f"a divisor of {dim.units}{sticks}: {options}"
        raise _refused(source, dim.symbol, expected, str(value))
    if int(value) > 1 and dim.kept_whole:
        raise _refused(source, dim.symbol, f"1, as {dim.kept_whole}", str(value))


def _refused(source: str, what: object, expected: str, found: str) -> LaunchError:
    return LaunchError(
        "SPY982",
        f"{source} cannot divide {what} so",
        expected=expected,
        found=found,
        hint="name dims of the operation with divisors of their sizes, in sticks along sticks",
    )


def order_of(iteration: Iteration, splits: Mapping[str, int], *, k_fast: bool) -> tuple[str, ...]:
    """`KernelOp.core_order` for ``splits`` that no operation has yet."""
    if not k_fast or not iteration.is_matmul:
        return iteration.symbols
    first = [s for s in iteration.symbols if s in iteration.reduced and splits[s] > 1]
    return _with_first(iteration.symbols, first)


def _with_first(symbols: tuple[str, ...], first: Sequence[str]) -> tuple[str, ...]:
    return (*first, *(symbol for symbol in symbols if symbol not in first))


def core_slices(
    order: Sequence[str], splits: Mapping[str, int]
) -> dict[str, npt.NDArray[np.int64]]:
    """Per dim, the index of the slice of every core (cores 0 up to the product of ``splits``)."""
    cores = np.arange(prod(splits[symbol] for symbol in order))
    slices: dict[str, npt.NDArray[np.int64]] = {}
    for symbol in order:
        cores, slices[symbol] = np.divmod(cores, splits[symbol])
    return slices


def divisions_text(ops: Sequence[KernelOp], divisions: Sequence[WorkDivision]) -> str:
    """A paragraph per operation, in the order of the kernel: cores, slices per dim, why."""
    pairs = enumerate(zip(ops, divisions, strict=True))
    return "\n".join(line for k, pair in pairs for line in _division_lines(k, *pair)) + "\n"


def _division_lines(number: int, op: KernelOp, division: WorkDivision) -> Iterator[str]:
    slices = ", ".join(
        f"{symbol}: {extent} in {division.splits[symbol]}"
        for symbol, extent in zip(op.symbols, op.extents, strict=True)
    )
    order = ", ".join(s for s in division.core_order if division.splits[s] > 1) or "-"
    yield f"{number} {op.name}: cores {division.cores}; {slices}; numbered along {order}"
    yield from (f"    {line}" for line in division.why.splitlines())
