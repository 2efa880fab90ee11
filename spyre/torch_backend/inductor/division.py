"""Work division: how the cores share an operation's iteration space (hardware reference §4.1).

The passes of `divide_op`, in order: span reduction, the cost model of matmuls, distribution of the
remaining cores. Hints of the user replace the passes. Core numbers follow from the result (step 7,
and SDSC reference §6.1). Which dims run along sticks, are reduced, or must stay whole follows from
the tensors' pitches (steps 1 and 5). A span is the memory from the first to the last byte of a
core's slice of a tensor; a core can address 256 MiB of device memory per tensor (hardware reference
§2). All functions are pure, so several threads may use them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from math import lcm, prod
from numbers import Integral

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.errors import LaunchError, UnsupportedError
from spyre.hw.cost import (
    Cores,
    RankedDivisions,
    Splits,
    default_machine,
    divisors,
    machine_with,
    product_counts,
    ranked,
    splits_within,
)
from spyre.hw.counters import (
    CostClass,
    Counters,
    OperationCounts,
    is_broadcast,
    product_dims,
    product_shape,
)
from spyre.hw.ops import Category, Family, find_op
from spyre.hw.spec import CORES, STICK_BYTES
from spyre.torch_backend.inductor.bundles.kernel_op import LX, DeviceDim, KernelOp
from spyre.torch_backend.program import OpKind, core_split

# --- dims that can be divided ---------------------------------------------------------------------


class DivisibleDim(msgspec.Struct, frozen=True, dict=True):
    """One dim of an operation's iteration space.

    ``elements``: its extent. ``unit``: elements that are not divided: those of a stick if sticks
    run along the dim, else 1. ``is_output``: the result has the dim (else it is reduced).
    ``along_sticks``: sticks of some tensor run along it. ``undivided_reason``: why it cannot
    be divided, "" if it can.
    """

    symbol: str
    elements: int
    unit: int
    is_output: bool
    along_sticks: bool
    undivided_reason: str = ""

    @cached_property
    def units(self) -> int:
        """Number of units; splits are divisors of it."""
        return -(-self.elements // self.unit)

    def splits(self, cores: int) -> list[int]:
        """Return the possible numbers of slices, at most ``cores``, ascending."""
        if self.undivided_reason:
            return [1]
        return [n for n in divisors(self.units) if n <= cores]

    def elements_per_core(self, splits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the elements of the first slice for each of ``splits``."""
        return np.minimum(self.units // splits * self.unit, self.elements)


class Iteration(msgspec.Struct, frozen=True, dict=True):
    """The dims of an operation, in iteration order."""

    op: KernelOp
    is_matmul: bool
    dims: tuple[DivisibleDim, ...]

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        return tuple(dim.symbol for dim in self.dims)

    @property
    def reduced(self) -> frozenset[str]:
        """Symbols of the reduced dims."""
        return frozenset(dim.symbol for dim in self.dims if not dim.is_output)


def read_iteration(op: KernelOp) -> Iteration:
    """Return the dims of ``op``, whether or not it is divided already."""
    known = find_op(op.name)
    family = known.family if known is not None else None
    is_matmul = known is not None and known.category is Category.MATMUL
    # dims of the result: all, or those that a reduction's output moves along above its stick
    outputs, dims = set(range(len(op.extents))), []
    if op.kind in (OpKind.REDUCTION, OpKind.MATMUL):
        outputs = {k for dim in op.device_dims[len(op.tensors) - 1] for k, _ in dim.walked}
    for k, (symbol, extent) in enumerate(zip(op.symbols, op.extents, strict=True)):
        lanes = [tensor.lanes for tensor in op.tensors if tensor.lane == k]
        dim = DivisibleDim(symbol, extent, lcm(*lanes), k in outputs, bool(lanes))
        dims.append(replace(dim, undivided_reason=_undivided_reason(dim, op, k, family)))
    return Iteration(op, is_matmul, tuple(dims))


def _undivided_reason(dim: DivisibleDim, op: KernelOp, number: int, family: Family | None) -> str:
    padded = dim.along_sticks and dim.elements % dim.unit != 0
    if family is Family.TOPK:
        return "topk runs on one core"
    if family is Family.RESTICKIFY and padded:
        return "a restickify does not divide dims it pads"
    if family is Family.REDUCTION and padded and not op.output.has(number):
        return "its padding is masked by coordinates"
    # SDSC reference §6.4: a table that is read through an index is not divided.
    if op.rows and op.tensors[0].has(number) and number != op.indirect_dim(0):
        return "all cores read one table from one start"
    return ""


# --- pass 1: spans --------------------------------------------------------------------------------

MAX_SPAN_BYTES = 256 << 20
"""Memory of one tensor that a core can address."""
_MIB = 1 << 20


def spans_bytes(iteration: Iteration, number: int, splits: Splits) -> npt.NDArray[np.int64]:
    """Return the span of tensor ``number`` per core, in bytes, for each row of ``splits`` (a column
    per dim): the steps along the outermost device dim that a core moves along, times its pitch.
    """
    spans = np.full(len(splits), STICK_BYTES, np.int64)
    for dim in reversed(iteration.op.device_dims[number]):
        steps = _steps_along(iteration, number, dim, splits)
        spans = np.where(steps > 1, steps * dim.pitch_bytes, spans)
    return spans


def _steps_along(
    iteration: Iteration, number: int, dim: DeviceDim, splits: Splits
) -> npt.NDArray[np.int64]:
    """Return the steps a core takes along a device dim, for each row of ``splits``; all steps if an
    index selects them.
    """
    op = iteration.op
    indirect = op.indirect_dim(number)
    if indirect >= 0 and op.tensors[number].pitches[indirect] == dim.pitch_bytes:
        return np.full(len(splits), dim.size, np.int64)
    steps = np.ones(len(splits), np.int64)
    for k, unit in dim.walked:
        steps += (iteration.dims[k].elements_per_core(splits[:, k]) - 1) // unit
    return steps


def reduce_spans(
    iteration: Iteration, cores: int, limit_bytes: int = MAX_SPAN_BYTES
) -> dict[str, int]:
    """Pass 1: return the splits over 1 that make spans fit.

    For each device dim, from the outermost inwards, the dims that move along it are divided
    together: the division with the largest span that fits, else the one with the smallest span.
    UnsupportedError SPY981 if several reduced dims would be divided.
    """
    splits = dict.fromkeys(iteration.symbols, 1)
    for number in device_tensors(iteration):
        for dim in iteration.op.device_dims[number]:
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
    """Return the splits after dividing the dims that move along ``dim``; ties go to the first."""
    inside = {iteration.symbols[k] for k, _ in dim.walked}
    options = [
        [n for n in divisible.splits(cores) if n >= least[divisible.symbol]]
        if divisible.symbol in inside and not divisible.undivided_reason
        else [least[divisible.symbol]]
        for divisible in iteration.dims
    ]
    rows = splits_within(options, cores)
    if not len(rows):
        return {}
    spans = spans_bytes(iteration, number, rows)
    fits = spans <= limit_bytes
    best = int(np.argmax(np.where(fits, spans, -1)) if fits.any() else np.argmin(spans))
    return dict(zip(iteration.symbols, map(int, rows[best]), strict=True))


def device_tensors(iteration: Iteration) -> list[int]:
    """Return the numbers of the tensors in device memory; spans in LX are not limited."""
    return [k for k, tensor in enumerate(iteration.op.tensors) if tensor.memory != LX]


def check_one_reduction(iteration: Iteration, splits: Mapping[str, int], purpose: str) -> None:
    """Raise UnsupportedError SPY981 if more than one reduced dim is divided."""
    divided = [s for s in iteration.symbols if s in iteration.reduced and splits.get(s, 1) > 1]
    if len(divided) > 1:
        raise UnsupportedError(
            "SPY981",
            f"{iteration.op.name} would have several reduced dims divided {purpose}",
            expected="at most one",
            found=splits_text({symbol: splits[symbol] for symbol in divided}),
            hint="tile the operation, or make its tensors smaller",
        )


def check_spans(iteration: Iteration, splits: Mapping[str, int]) -> None:
    """Raise UnsupportedError SPY980 if a core's slice of a tensor spans too much memory."""
    for number in device_tensors(iteration):
        span = _span(iteration, number, splits)
        if span > MAX_SPAN_BYTES:
            raise UnsupportedError(
                "SPY980",
                f"a core's slice of argument {number} of {iteration.op.name} spans too much memory",
                expected=f"at most {_mib(MAX_SPAN_BYTES)} from first to last byte",
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
    """Return the splits over 1 as text: ``c0:4, c1:8``."""
    text = ", ".join(f"{symbol}:{count}" for symbol, count in dict(splits).items() if count > 1)
    return text or "one core"


# --- pass 2: matmuls ------------------------------------------------------------------------------
#
# The cost model chooses (:mod:`spyre.hw.cost`). For others only the number of cores
# matters, and pass 3 uses the largest. Roles of the dims (batch, M, N, K): §4.1, step 4.


def product_of(iteration: Iteration) -> tuple[OperationCounts, dict[str, list[int]]]:
    """Return the counts of a divided matmul with operands in HBM, and its dims by role."""
    op, rank = iteration.op, range(len(iteration.dims))
    held = [[k for k in rank if tensor.has(k)] for tensor in (*op.inputs[:2], op.output)]
    roles = product_dims(rank, *held)
    extents = {k: dim.units * dim.unit for k, dim in enumerate(iteration.dims)}
    pitches = [
        {t.pitches[k]: k for k in reversed(rank) if k != t.lane and t.pitches[k] and extents[k] > 1}
        for t in (*op.inputs[:2], op.output)
    ]
    # sticks of batches alternate where one of them is the innermost dim above the stick
    alternate = tuple(bool(p) and p[min(p)] in roles["batch"] for p in pitches)
    shape = product_shape(roles, extents, dict(enumerate(op.splits)))
    shape = replace(shape, interleaved=alternate)
    return product_counts(shape, op.tensors[0].format), roles


def divide_matmul(
    iteration: Iteration, cores: int, default: Mapping[str, int], lx_fraction: float | None = None
) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Return the splits per dim of all candidates, those with the least modelled time first, and a
    line about the first and the next ones.

    Candidates let a core reach its slices, divide at most one reduced dim, and use at least half as
    many cores as ``default``, the division of pass 3. They are in the order of nested loops.
    """
    counts, roles = product_of(iteration)
    rows = splits_within([dim.splits(cores) for dim in iteration.dims], cores)
    rows = rows[2 * rows.prod(axis=1) >= prod(default.values())]
    rows = rows[(rows[:, roles["k"]] > 1).sum(axis=1) <= 1]
    for number in device_tensors(iteration):
        rows = rows[spans_bytes(iteration, number, rows) <= MAX_SPAN_BYTES]
    if not len(rows):
        return (tuple(default.values()),), "no division lets a core reach its slices"
    kinds = (roles[kind] for kind in ("batch", "m", "n", "k"))
    columns = np.stack([rows[:, dims].prod(axis=1) for dims in kinds], axis=1)
    found = _ranked(counts, tuple(map(tuple, columns.tolist())), lx_fraction)
    splits = tuple(tuple(row) for row in rows[list(found.order)].tolist())
    shown = splits[: 1 + NEXT_SHOWN]
    texts = [splits_text(zip(iteration.symbols, row, strict=True)) for row in shown]
    times = [f"{found.times_ns[k] / 1e3:,.4g} us" for k in found.order[: 1 + NEXT_SHOWN]]
    lines = [f"{texts[0]} in {times[0]} (±{found.spread:.0%}), of {len(rows)}"]
    for k, text, time in zip(found.order[1:], texts[1:], times[1:], strict=False):
        lines.append(f"    {text} in {time}{', too close to call' if found.is_close(k) else ''}")
    return splits, "\n".join(lines)


NEXT_SHOWN = 3
"""Candidates in a report behind the best one."""


@lru_cache(maxsize=1024)
def _ranked(
    counts: OperationCounts, candidates: tuple[Cores, ...], lx_fraction: float | None
) -> RankedDivisions:
    """Modelled times; layers of a model repeat their products."""
    return ranked(counts, candidates, machine_with(default_machine(), lx_fraction))


# --- all passes -----------------------------------------------------------------------------------


DIVISION_PASSES = SPAN, MATMUL_COST, DISTRIBUTION = (
    "span_reduction",
    "cost_model_matmul_division",
    "work_distribution",
)
"""Names of the passes, in order."""


class WorkDivision(msgspec.Struct, frozen=True):
    """The division of an operation among cores.

    ``splits``: number of slices per dim, in iteration order (1: not divided). ``why``: result and
    reason of each pass, a line each. ``before``: splits over 1 after each earlier pass, by its
    name. ``candidates``: of a matmul, splits per dim of all divisions, the fastest first.
    """

    splits: Mapping[str, int]
    why: str
    before: Mapping[str, Mapping[str, int]] = msgspec.field(default_factory=dict)
    candidates: tuple[tuple[int, ...], ...] = ()

    @property
    def cores(self) -> int:
        return prod(self.splits.values())

    @property
    def is_hinted(self) -> bool:
        """Whether a user's hints divide it, not the passes."""
        return not self.before

    def after(self, name: str) -> WorkDivision:
        """Return the division after pass ``name`` of `DIVISION_PASSES`."""
        if name == DIVISION_PASSES[-1]:
            return self
        before = self.before.get(name, {})
        return replace(self, splits={symbol: before.get(symbol, 1) for symbol in self.splits})

    def changed_to(self, splits: Sequence[int]) -> WorkDivision:
        """Return this division with other splits, which `divide_for_lx` chose."""
        changed = dict(zip(self.splits, splits, strict=True))
        why = f"{self.why}\nlx_division: {splits_text(changed)}, so that results stay in LX"
        return replace(self, splits=changed, why=why)


def divide_op(
    op: KernelOp,
    cores: int = CORES,
    hints: Mapping[str, int] | None = None,
    lx_fraction: float | None = None,
) -> WorkDivision:
    """Divide ``op`` among at most ``cores`` cores (1 to 32).

    ``hints``: the user's division, which replaces all passes; other dims are not divided.
    ``lx_fraction``: of LX that the backend uses, the default machine's if None.

    LaunchError SPY982 for invalid hints or cores; UnsupportedError SPY980 for slices that span more
    than 256 MiB, SPY981 for several divided reductions.
    """
    if not 1 <= cores <= CORES:
        raise LaunchError(
            "SPY982",
            "an operation cannot be divided over these cores",
            expected=f"1 to {CORES}",
            found=str(cores),
        )
    iteration = read_iteration(op)
    if hints:
        splits = checked_splits(iteration, hints, cores)
        found = WorkDivision(splits, f"hints: {splits_text(splits)}")
    else:
        found = _planned(iteration, cores, lx_fraction)
    check_spans(iteration, found.splits)
    return replace(found, splits={symbol: found.splits[symbol] for symbol in iteration.symbols})


def with_division(op: KernelOp, division: WorkDivision) -> KernelOp:
    """Return ``op`` with the splits of ``division``."""
    return replace(op, cores=tuple(division.splits[symbol] for symbol in op.symbols))


def _planned(iteration: Iteration, cores: int, lx_fraction: float | None) -> WorkDivision:
    """The division by the three passes."""
    spans = reduce_spans(iteration, cores)
    default = distribute(iteration, cores, spans)
    before = {SPAN: spans, MATMUL_COST: spans}
    lines = [f"{SPAN}: nothing to do, a core reaches every tensor"]
    if spans:
        lines = [f"{SPAN}: {splits_text(spans)}, so that a core reaches its slices"]
    if not iteration.is_matmul:
        lines.append(f"{MATMUL_COST}: not applied, {iteration.op.name} is no matmul")
        lines.append(f"{DISTRIBUTION}: {_distribution_line(iteration, default)}")
        return WorkDivision(default, "\n".join(lines), before)
    candidates, why = divide_matmul(iteration, cores, default, lx_fraction)
    lines += [f"{MATMUL_COST}: {why}", f"{DISTRIBUTION}: nothing left to divide"]
    splits = dict(zip(iteration.symbols, candidates[0], strict=True))
    return WorkDivision(splits, "\n".join(lines), {**before, MATMUL_COST: splits}, candidates)


def _distribution_line(iteration: Iteration, splits: Mapping[str, int]) -> str:
    sizes = ", ".join(f"{dim.symbol}={dim.units}" for dim in iteration.dims)
    kept = [
        f"{dim.symbol} whole: {dim.undivided_reason}"
        for dim in iteration.dims
        if dim.undivided_reason
    ]
    return "; ".join([f"{splits_text(splits)} of {sizes}", *kept])


def distribute(iteration: Iteration, cores: int, spans: Mapping[str, int]) -> dict[str, int]:
    """Pass 3: return the splits of all dims; those of pass 1, ``spans``, stay.

    Result dims are divided first, the largest (in units) before smaller ones, each as far as the
    remaining cores allow. The rest of the cores goes to the reduced dim that can use most of them,
    unless pass 1 has divided a reduced dim.
    """
    splits = dict.fromkeys(iteration.symbols, 1) | dict(spans)
    left = cores // prod(splits.values())
    free = [d for d in iteration.dims if splits[d.symbol] == 1 and not d.undivided_reason]
    by_size = sorted(free, key=lambda dim: -dim.units)
    for dim in by_size:
        if dim.is_output:
            splits[dim.symbol] = core_split(dim.units, left)
            left //= splits[dim.symbol]
    reduced = [dim for dim in by_size if not dim.is_output]
    if left > 1 and reduced and all(splits[symbol] == 1 for symbol in iteration.reduced):
        best = max(reduced, key=lambda dim: core_split(dim.units, left))
        splits[best.symbol] = core_split(best.units, left)
    return splits


def checked_splits(iteration: Iteration, hints: Mapping[str, int], cores: int) -> dict[str, int]:
    """Return ``hints`` completed to splits of all dims; dims not named are not divided (§4.1, step
    6).

    LaunchError SPY982 unless every value is a positive integer that divides its dim and the product
    is at most ``cores``; UnsupportedError SPY981 for several reduced dims.
    """
    dims = {dim.symbol: dim for dim in iteration.dims}
    splits = dict.fromkeys(dims, 1)
    for symbol, value in hints.items():
        if symbol not in dims:
            names = ", ".join(map(str, dims))
            raise _refused(symbol, f"a dim of {iteration.op.name}: {names}", str(symbol))
        _check_value(dims[symbol], value)
        splits[symbol] = int(value)
    if prod(splits.values()) > cores:
        used = f"{prod(splits.values())} cores: {splits_text(splits)}"
        raise _refused("all dims together", f"at most {cores} cores", used)
    check_one_reduction(iteration, splits, "by a work division hint")
    return splits


def _check_value(dim: DivisibleDim, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise _refused(dim.symbol, "an integer from 1 on", repr(value))
    if dim.units % int(value):
        options = ", ".join(map(str, divisors(dim.units)))
        sticks = f" ({dim.elements} elements in units of {dim.unit})" if dim.unit > 1 else ""
        expected = f"a divisor of {dim.units}{sticks}: {options}"
        raise _refused(dim.symbol, expected, str(value))
    if int(value) > 1 and dim.undivided_reason:
        raise _refused(dim.symbol, f"1, because {dim.undivided_reason}", str(value))


def _refused(subject: object, expected: str, found: str) -> LaunchError:
    return LaunchError(
        "SPY982",
        f"a work division hint cannot divide {subject} so",
        expected=expected,
        found=found,
        hint="name dims of the operation with divisors of their sizes, in sticks along sticks",
    )


def core_slices(
    order: Sequence[str], splits: Mapping[str, int]
) -> dict[str, npt.NDArray[np.int64]]:
    """Return, per dim, the slice index of every core, array [product of ``splits``]."""
    cores = np.arange(prod(splits[symbol] for symbol in order))
    slices: dict[str, npt.NDArray[np.int64]] = {}
    for symbol in order:
        cores, slices[symbol] = np.divmod(cores, splits[symbol])
    return slices


def divisions_text(ops: Sequence[KernelOp], divisions: Sequence[WorkDivision]) -> str:
    """Return a paragraph per divided operation in program order: cores, slices, reasons."""
    pairs = enumerate(zip(ops, divisions, strict=True))
    return "\n".join(line for k, pair in pairs for line in _division_lines(k, *pair)) + "\n"


def _division_lines(number: int, op: KernelOp, division: WorkDivision) -> Iterator[str]:
    slices = ", ".join(
        f"{symbol}: {extent} in {division.splits[symbol]}"
        for symbol, extent in zip(op.symbols, op.extents, strict=True)
    )
    order = ", ".join(op.symbols[k] for k in op.core_order if op.splits[k] > 1) or "-"
    yield f"{number} {op.name}: cores {division.cores}; {slices}; numbered along {order}"
    yield from (f"    {line}" for line in division.why.splitlines())


# --- counts for the cost model --------------------------------------------------------------------


def counts_of(op: KernelOp, in_lx: Collection[str] = (), runs: int = 1) -> OperationCounts:
    """Return the counts of ``runs`` iterations of a divided operation, without linking a bundle, in
    some ten microseconds: the planner of LX compares its plans by them. Unlike in the counts of the
    linked program, every tensor is moved once per iteration, and reads from another core's
    scratchpad do not count.

    ``in_lx``: names of further buffers in LX, in addition to the operation's.
    """
    known, lane = find_op(op.name), op.tensors[0].lane
    in_hbm = [tensor.memory != LX and tensor.buffer not in in_lx for tensor in op.tensors]
    columns = max(op.extents[lane], 1) if lane >= 0 else 1
    counts = OperationCounts(
        name=op.name,
        cost_class=_class_of(op, known.family if known else None, in_hbm),
        cores=prod(op.splits),
        counters=_moved(op, in_hbm).times(runs),
        transcendental=known is not None and known.transcendental,
        mac_format=op.tensors[0].format,
        rows=prod(op.extents) // columns,
        columns=columns,
        column_cores=op.splits[lane] if lane >= 0 else 1,
        scalar_operand=bool(op.constants),
    )
    if counts.cost_class is not CostClass.MATMUL:
        return counts
    shape = product_of(read_iteration(op))[0].product
    assert shape is not None
    return replace(counts, product=replace(shape, in_hbm=(*in_hbm[:2], in_hbm[-1])))


def _class_of(op: KernelOp, family: Family | None, in_hbm: Sequence[bool]) -> CostClass:
    if family in (Family.MATMUL, Family.PACKED_MATMUL):
        return CostClass.MATMUL
    if family is Family.REDUCTION:
        keeps_stick = op.output.has(op.tensors[0].lane)
        return CostClass.COLUMN_REDUCTION if keeps_stick else CostClass.ROW_REDUCTION
    if family is Family.RESTICKIFY:
        return CostClass.TRANSPOSE
    dims = [k for k, extent in enumerate(op.extents) if extent > 1 and op.output.has(k)]
    far = [tensor for tensor, is_far in zip(op.inputs, in_hbm, strict=False) if is_far]
    broadcasts = any(is_broadcast([k for k in dims if t.has(k)], dims) for t in far)
    is_broadcast_class = family is Family.ELEMENTWISE and broadcasts
    return CostClass.BROADCAST if is_broadcast_class else CostClass.POINTWISE


def _moved(op: KernelOp, in_hbm: Sequence[bool]) -> Counters:
    """One iteration: every stick of a tensor once."""
    moved = dict.fromkeys(((far, out) for far in (True, False) for out in (True, False)), 0)
    for number, (tensor, far) in enumerate(zip(op.tensors, in_hbm, strict=True)):
        steps = (
            -(-extent // tensor.lanes) if k == tensor.lane else extent
            for k, extent in enumerate(op.extents)
            if tensor.has(k)
        )
        moved[far, op.is_output(number)] += prod(steps) * STICK_BYTES
    known, points = find_op(op.name), prod(op.extents)
    is_product = known is not None and known.unit == "pt"
    return Counters(
        rdmem_bytes=moved[True, False],
        wrmem_bytes=moved[True, True],
        lx_read_bytes=moved[False, False],
        lx_written_bytes=moved[False, True],
        multiply_adds=points if is_product else 0,
        element_operations=0 if is_product else points,
        executions=1,
    )
