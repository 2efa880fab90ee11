"""Arguments of a bundle without launch_spec.json, derived from the memory its SDSCs access.

Every operand in HBM is traced to the parameter or segment that its addresses start from, over all
loop iterations. The operand with the largest allocation gives an argument its layout. Unpadded host
shapes and host strides are not known: row-major is assumed, with a warning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spyre.dtypes import FORMATS
from spyre.errors import Finding, JsonLocation, LaunchError, Severity, UnsupportedError
from spyre.hw.linking import check_bound
from spyre.hw.ops import STANDARD, arrangement_faults, find_op
from spyre.hw.plans import check_slices
from spyre.layout import Int64Array, SpyreTensorLayout, contiguous_strides
from spyre.mlir.operation import (
    Component,
    Footprint,
    Operation,
    Tensor,
    footprint,
    group_by_sizes,
    stick_elements,
    with_sizes,
)
from spyre.mlir.program import Execute, LoopProgram, Schedule
from spyre.runtime.arguments.specs import ArgumentSpec, KernelArguments, argument_name
from spyre.runtime.program import POOL, LoweredBundle, Role, owner_of, require_no_size

# Parameters are scheduled with their number in the high bits, so that it can be read off every
# address computed from them, whatever the loops add.
OWNER_BITS = 40
SCRATCH_OWNER = 1 << 16
"""Owners from this number on are device_mem_allocates, not arguments."""
SEGMENT_BITS = 34
"""Lowest bit of the segment number in the addresses of baked bundles."""
_HOST_DTYPES = {row.name: row.host_dtype for row in FORMATS.values() if row.host_dtype}


@dataclass(frozen=True, slots=True)
class ArgumentUse:
    """One operand of one execute, and the extents it accesses, in bytes from the argument's start.

    ``execute``: number of the execute statement in the text. ``sized``: dims with a runtime size.
    """

    execute: int
    op: Operation
    tensor: Tensor
    extents: Footprint
    reads: bool
    end_bytes: int
    sized: frozenset[str] = frozenset()


def derive_arguments(bundle: LoweredBundle, values: Mapping[str, int]) -> KernelArguments:
    """Return the arguments and the pool of a bundle from its SDSCs.

    ``values``: of index parameters and runtime sizes. LaunchError SPY362 if one is missing, SPY368
    if the format of an argument has no host dtype.
    """
    uses = uses_by_owner(bundle, values)
    if not bundle.program.parameters:
        uses = _by_segment(uses)
    pool_bytes = max((use.end_bytes for use in uses.pop(POOL, [])), default=0)
    arguments = tuple(_argument(index, uses[index]) for index in sorted(uses))
    return KernelArguments(arguments, pool_bytes, _warning(bundle, arguments), is_derived=True)


def _warning(bundle: LoweredBundle, arguments: Sequence[ArgumentSpec]) -> tuple[Finding, ...]:
    shapes = ", ".join(f"{a.name} {a.role.value} {a.host_spec}" for a in arguments)
    return (
        Finding(
            "SPY364",
            Severity.WARNING,
            f"{bundle.directory} has no launch_spec.json: shapes are derived and unchecked",
            expected="launch_spec.json beside bundle.mlir",
            found=shapes or "no arguments",
            hint="give the inputs' host shapes with --shape where they are padded",
        ),
    )


# --- tracing operands to arguments ------------------------------------------------------------


def uses_by_owner(bundle: LoweredBundle, values: Mapping[str, int]) -> dict[int, list[ArgumentUse]]:
    """Uses in textual order, reads of an execute first, per argument index (POOL: the pool).

    In a bundle without parameters the key is the segment. LaunchError SPY362 for a parameter
    without value.
    """
    program = bundle.program
    owners, parameter_values = owner_parameters(program, values)
    scratch = [(SCRATCH_OWNER + k) << OWNER_BITS for k in range(len(program.allocations))]
    schedule = program.schedule(parameter_values, scratch)
    uses: dict[int, list[ArgumentUse]] = defaultdict(list)
    for execute in program.executes:
        op = bundle.operations[execute.sdsc_filename]
        for owner, use in _uses_of(op, execute, schedule):
            uses[owner].append(use)
    if program.parameters:
        return {owners[k]: owned for k, owned in uses.items() if k in owners}
    return dict(uses)


def owner_parameters(
    program: LoopProgram, values: Mapping[str, int]
) -> tuple[dict[int, int], dict[str, int]]:
    """Argument index by owner number, and parameter values whose high bits are that number.

    LaunchError SPY362 or SPY366 for a parameter without value.
    """
    owners, parameter_values = {}, {}
    for number, parameter in enumerate(program.parameters):
        index = owner_of(parameter.name)
        if index is not None:
            owners[number] = index
            parameter_values[parameter.name] = number << OWNER_BITS
        elif parameter.name in values:
            parameter_values[parameter.name] = values[parameter.name]
        else:
            require_no_size(parameter, values)
            raise LaunchError(
                "SPY362",
                f"no value for parameter %{parameter.name}",
                parameter.location,
                expected=f"a value for {parameter.name}",
                found=", ".join(values) or "no values",
            )
    return owners, parameter_values


def _uses_of(
    op: Operation, execute: Execute, schedule: Schedule
) -> Iterator[tuple[int, ArgumentUse]]:
    sized = frozenset(op.symbolic_dims)
    op, all_starts = operand_starts(op, execute, schedule)
    for tensor, starts in zip(op.tensors, all_starts, strict=False):
        if tensor.component is not Component.HBM:
            continue
        bits = OWNER_BITS if tensor.symbolic else SEGMENT_BITS
        extents = footprint(op, tensor)
        for owner in np.unique(starts >> bits):
            offsets = starts[(starts >> bits) == owner] - (int(owner) << bits)
            end = int(offsets.max()) + extents.span_bytes
            is_read = tensor not in op.outputs
            use = ArgumentUse(execute.index, op, tensor, extents, is_read, end, sized)
            yield int(owner), use


def operand_starts(
    op: Operation, execute: Execute, schedule: Schedule
) -> tuple[Operation, tuple[Int64Array, ...]]:
    """``op`` with each runtime size as large as any execution has it, and where its operands start.

    Per operand [instance, core], bytes; none for an execute that is never reached. LaunchError
    SPY372 for a size out of its range.
    """
    symbols = schedule.symbols[execute.index]
    if not len(symbols):
        return op, ()
    check_bound(op, execute)
    check_slices(op)
    largest: dict[str, int] = {}
    for sizes, _ in group_by_sizes(op, execute.symbol_ids, symbols):
        largest = {dim: max(size, largest.get(dim, 0)) for dim, size in sizes.items()}
    op = with_sizes(op, largest)
    column = {symbol: k for k, symbol in enumerate(execute.symbol_ids)}
    return op, tuple(
        symbols[:, [column[symbol] for symbol in tensor.starts]]
        if tensor.symbolic
        else np.broadcast_to(np.array(tensor.starts, np.int64), (1, len(op.cores)))
        for tensor in op.tensors
    )


def _by_segment(uses: Mapping[int, list[ArgumentUse]]) -> dict[int, list[ArgumentUse]]:
    """Baked: segment k is argument k, or k-1 when segment 0 is a pool (written before read)."""
    # Nothing in a baked bundle says whether it has a pool; how segment 0 is used does.
    has_pool = 0 in uses and _looks_like_pool(uses)
    first = 1 if has_pool else 0
    return {segment - first: segment_uses for segment, segment_uses in uses.items()}


def _looks_like_pool(uses: Mapping[int, list[ArgumentUse]]) -> bool:
    """Segment 0 holds intermediates: written first, read later, and not the only output."""
    others = (role_of(segment_uses) for segment, segment_uses in uses.items() if segment != 0)
    first_uses = uses[0]
    written_then_read = not first_uses[0].reads and any(use.reads for use in first_uses)
    return written_then_read and any(role is not Role.INPUT for role in others)


def role_of(uses: Sequence[ArgumentUse]) -> Role:
    """Written before read: output; only read: input; read, then written: both."""
    if not uses[0].reads:
        return Role.OUTPUT
    return Role.INPUT if all(use.reads for use in uses) else Role.INPUT_OUTPUT


# --- shapes -----------------------------------------------------------------------------------


def _argument(index: int, uses: Sequence[ArgumentUse]) -> ArgumentSpec:
    """The argument as its largest use has it, long enough for every use."""
    widest = max(uses, key=lambda use: use.extents.allocation_bytes)
    end_bytes = max(use.end_bytes for use in uses)
    dims = _device_dims(widest, end_bytes)
    name, data_format = argument_name(index), widest.tensor.data_format
    if data_format not in _HOST_DTYPES:
        raise LaunchError(
            "SPY368",
            f"the host dtype of {name} cannot be derived",
            expected=f"a launch_spec.json, or one of {', '.join(_HOST_DTYPES)}",
            found=data_format,
        )
    shape = _host_shape(widest, dims)
    strides = contiguous_strides(tuple(shape.values()))
    layout = _layout(widest, dims, dict(zip(shape, strides, strict=True)))
    return ArgumentSpec(
        index,
        name,
        role_of(uses),
        tuple(shape.values()),
        _HOST_DTYPES[data_format],
        layout,
        strides,
    )


def _device_dims(use: ArgumentUse, end_bytes: int) -> dict[str, int]:
    """Return the steps (sticks along stick dims) of each dim of the tensor, outermost first.

    The outermost dim is enlarged to cover ``end_bytes``, because loops walk over its tiles.
    """
    sticks = stick_elements(use.tensor)
    dims = [dim for dim in reversed(use.tensor.dims) if use.tensor.holds(dim)]
    steps = {dim: -(-use.extents.stored[dim] // sticks.get(dim, 1)) for dim in dims}
    if dims:
        needed = -(-end_bytes // use.extents.pitch_bytes[dims[0]])
        steps[dims[0]] = max(steps[dims[0]], needed)
    return steps


def _host_shape(use: ArgumentUse, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the host extents (elements) by dim, in host order; stick dims have whole sticks.

    A dim with a runtime size has the value of the launch; its memory is larger.
    """
    sticks = stick_elements(use.tensor)
    shape = {dim: dims[dim] * sticks.get(dim, 1) for dim in _host_order(use, list(dims))}
    return {**shape, **{dim: use.op.extents[dim] for dim in shape if dim in use.sized}}


def _host_order(use: ArgumentUse, outermost_first: list[str]) -> list[str]:
    """The host order whose default layout this is (runtime reference §1.1), else N_ order.

    By default the first host dim is innermost above the stick, then come the sticks of the last.
    """
    *middle, stick, first = outermost_first if len(outermost_first) > 1 else ["", ""]
    if stick and stick == use.tensor.stick_dims[0]:
        return [first, *middle, stick]
    return [dim for dim in use.op.dims if dim in outermost_first]


def _layout(
    use: ArgumentUse, dims: Mapping[str, int], strides: Mapping[str, int]
) -> SpyreTensorLayout:
    """Return the device layout; its lane stride is -1 if a stick has one value.

    UnsupportedError SPY521 for sticks of several dims, which a layout cannot describe.
    """
    if len(use.tensor.stick_dims) != 1:
        raise UnsupportedError(
            "SPY521",
            f"the host layout of {use.tensor.name}, which packs several dims into a stick, "
            "cannot be derived",
            JsonLocation(use.op.file, use.tensor.json_path),
            expected="one stick dim",
            found=f"{use.tensor.stick_dims} of sizes {use.tensor.stick_sizes}",
        )
    stick_dim, lanes = use.tensor.stick_dims[0], use.tensor.stick_sizes[0]
    sizes = list(dims.values())
    walked = [strides[dim] * (lanes if dim == stick_dim else 1) for dim in dims]
    lane_stride = strides.get(stick_dim, -1)
    for k, dim in enumerate(dims):
        if dim in use.sized and use.op.extents[dim] <= (lanes if dim == stick_dim else 1):
            walked[k] = -1
    if not sizes:
        sizes, walked = [1], [-1]
    return SpyreTensorLayout((*sizes, lanes), (*walked, lane_stride), use.tensor.data_format)


def arrangement_findings(
    bundle: LoweredBundle, arguments: KernelArguments, values: Mapping[str, int]
) -> tuple[Finding, ...]:
    """Return warnings on executes whose arguments have an element arrangement.

    A launch in which every layout is STANDARD is not traced. LaunchErrors as of the tracing.
    """
    known = {a.arg_index: a.layout.element_arrangement for a in arguments.arguments}
    if set(known.values()) <= {STANDARD}:
        return ()
    baked = not bundle.program.parameters
    first = 1 if baked and arguments.pool_bytes else 0
    tags: dict[int, dict[int, str]] = defaultdict(dict)
    operations: dict[int, Operation] = {}
    for owner, uses in uses_by_owner(bundle, values).items():
        for use in uses:
            operations[use.execute] = use.op
            if owner - first in known:
                tags[use.execute][use.tensor.index] = known[owner - first]
    findings: list[Finding] = []
    for execute, op in sorted(operations.items(), key=lambda pair: pair[0]):
        spec = find_op(op.name)
        if spec is not None:
            findings += arrangement_faults(op, spec, tags[execute])
    return tuple(dict.fromkeys(findings))
