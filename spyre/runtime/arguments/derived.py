"""Arguments of a bundle without launch_spec.json, derived from the memory its SDSCs access.

Every operand in HBM is traced to the parameter or segment its addresses start from, over all loop
iterations. The operand with the largest allocation gives an argument its layout. Unpadded host
shapes and host strides cannot be derived: they are assumed row-major, with a warning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spyre.dtypes import FORMATS
from spyre.errors import Finding, JsonLocation, LaunchError, Severity, UnsupportedError
from spyre.hw.counters import UNLABELLED, ExecuteLabels
from spyre.hw.linking import AddressOwners, TracedExecute, Walk, trace
from spyre.hw.ops import STANDARD, arrangement_faults, find_op
from spyre.hw.spec import REGIONS
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.operation import Footprint, Operation, footprint
from spyre.mlir.program import Parameter
from spyre.runtime.arguments.specs import ArgumentSpec, KernelArguments, argument_name
from spyre.runtime.program import POOL, LoweredBundle, Role, owner_of, require_no_size

T = TypeVar("T")

_HOST_DTYPES = {row.name: row.host_dtype for row in FORMATS.values() if row.host_dtype}


@dataclass(frozen=True, slots=True)
class ArgumentUse:
    """One operand of one execute statement, and the range of its argument that it accesses.

    ``end_bytes``: end of the range over all executions, from the argument's first byte. ``sized``:
    dims of a runtime size.
    """

    walk: Walk[int]
    extents: Footprint
    end_bytes: int
    sized: frozenset[str] = frozenset()


def derive_arguments(bundle: LoweredBundle, values: Mapping[str, int]) -> KernelArguments:
    """Return the arguments and the pool of a bundle from its SDSCs.

    ``values``: of index parameters and runtime sizes. LaunchError SPY362 if one is missing, SPY368
    if the format of an argument has no host dtype.
    """
    uses = uses_by_argument(bundle, values)
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


def trace_operands(
    bundle: LoweredBundle,
    memories: Mapping[int, T],
    values: Mapping[str, int],
    scratch: Sequence[T] = (),
    has_pool: bool = False,
    label: ExecuteLabels = UNLABELLED,
) -> Iterator[TracedExecute[T]]:
    """`trace` of a bundle whose memory is given by argument index and POOL.

    ``scratch``: one per device_mem_allocate. ``has_pool``: in a baked bundle segment 0 is the pool
    and argument k is in segment k + 1. LaunchError SPY362 or SPY366 for a parameter without value.
    """
    program = bundle.program
    parameters: dict[str, T] = {}
    known = dict(values)
    for parameter in program.parameters:
        index = owner_of(parameter.name)
        if index is None:
            _require_value(parameter, values)
        elif index in memories:
            parameters[parameter.name] = memories[index]
        else:
            known[parameter.name] = 0
    segments: dict[int, T] = {}
    if not program.parameters:
        arguments = {k + int(has_pool): m for k, m in memories.items() if k != POOL}
        segments = {0: memories[POOL], **arguments} if has_pool else arguments
    owners = AddressOwners(parameters, segments, scratch)
    return trace(program, bundle.operations, owners, known, label)


def _require_value(parameter: Parameter, values: Mapping[str, int]) -> None:
    if parameter.name in values:
        return
    require_no_size(parameter, values)
    raise LaunchError(
        "SPY362",
        f"no value for parameter %{parameter.name}",
        parameter.location,
        expected=f"a value for {parameter.name}",
        found=", ".join(values) or "no values",
    )


def uses_by_argument(
    bundle: LoweredBundle, values: Mapping[str, int]
) -> dict[int, list[ArgumentUse]]:
    """Uses in textual order, reads of an execute first, per argument index (POOL: the pool).

    In a bundle without parameters the key is the segment. LaunchErrors as of `trace_operands`.
    """
    names = (owner_of(parameter.name) for parameter in bundle.program.parameters)
    indices = {index for index in names if index is not None} or range(REGIONS)
    uses: dict[int, list[ArgumentUse]] = defaultdict(list)
    for traced in trace_operands(bundle, {index: index for index in indices}, values):
        sized = frozenset(bundle.operations[traced.execute.sdsc_filename].symbolic_dims)
        for walk in traced.walks:
            extents = footprint(walk.op, walk.tensor)
            for index in sorted({owner for owner in walk.owners if owner is not None}):
                cores = [k for k, owner in enumerate(walk.owners) if owner == index]
                end_bytes = int(walk.offsets[:, cores].max()) + extents.span_bytes
                uses[index].append(ArgumentUse(walk, extents, end_bytes, sized))
    return dict(uses)


def _by_segment(uses: Mapping[int, list[ArgumentUse]]) -> dict[int, list[ArgumentUse]]:
    """Baked: segment k is argument k, or k-1 when segment 0 is a pool (written before read)."""
    # A baked bundle does not record whether it has a pool, so the use of segment 0 decides.
    has_pool = 0 in uses and _looks_like_pool(uses)
    first = 1 if has_pool else 0
    return {segment - first: segment_uses for segment, segment_uses in uses.items()}


def _looks_like_pool(uses: Mapping[int, list[ArgumentUse]]) -> bool:
    """Segment 0 holds intermediates: written first, read later, and not the only output."""
    others = (role_of(segment_uses) for segment, segment_uses in uses.items() if segment != 0)
    writes = [use.walk.is_output for use in uses[0]]
    written_then_read = writes[0] and not all(writes)
    return written_then_read and any(role is not Role.INPUT for role in others)


def role_of(uses: Sequence[ArgumentUse]) -> Role:
    """Written before read: output; only read: input; read, then written: both."""
    if uses[0].walk.is_output:
        return Role.OUTPUT
    return Role.INPUT_OUTPUT if any(use.walk.is_output for use in uses) else Role.INPUT


# --- shapes -----------------------------------------------------------------------------------


def _argument(index: int, uses: Sequence[ArgumentUse]) -> ArgumentSpec:
    """The argument with the layout of its largest use, long enough for every use."""
    widest = max(uses, key=lambda use: use.extents.allocation_bytes)
    end_bytes = max(use.end_bytes for use in uses)
    dims = _device_dims(widest, end_bytes)
    name, data_format = argument_name(index), widest.walk.tensor.data_format
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

    The outermost dim grows until it covers ``end_bytes``: loops walk tiles of it.
    """
    sticks = use.walk.tensor.sticks
    dims = [dim for dim in reversed(use.walk.tensor.dims) if use.walk.tensor.holds(dim)]
    steps = {dim: -(-use.extents.stored[dim] // sticks.get(dim, 1)) for dim in dims}
    if dims:
        needed = -(-end_bytes // use.extents.pitch_bytes[dims[0]])
        steps[dims[0]] = max(steps[dims[0]], needed)
    return steps


def _host_shape(use: ArgumentUse, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the host extents (elements) by dim, in host order; stick dims have whole sticks.

    A dim of a runtime size has the size of the launch, though its memory may be larger.
    """
    sticks = use.walk.tensor.sticks
    shape = {dim: dims[dim] * sticks.get(dim, 1) for dim in _host_order(use, list(dims))}
    return {**shape, **{dim: use.walk.op.extents[dim] for dim in shape if dim in use.sized}}


def _host_order(use: ArgumentUse, outermost_first: list[str]) -> list[str]:
    """The host order whose default layout this is (runtime reference §1.1), else N_ order.

    By default the first host dim is innermost above the stick, then come the sticks of the last.
    """
    *middle, stick, first = outermost_first if len(outermost_first) > 1 else ["", ""]
    if stick and stick == use.walk.tensor.stick_dims[0]:
        return [first, *middle, stick]
    return [dim for dim in use.walk.op.dims if dim in outermost_first]


def _layout(
    use: ArgumentUse, dims: Mapping[str, int], strides: Mapping[str, int]
) -> SpyreTensorLayout:
    """Return the device layout; its lane stride is -1 if a stick has one value.

    UnsupportedError SPY521 for sticks of several dims, which layouts cannot describe.
    """
    if len(use.walk.tensor.stick_dims) != 1:
        raise UnsupportedError(
            "SPY521",
            f"the host layout of {use.walk.tensor.name}, which packs several dims into a stick, "
            "cannot be derived",
            JsonLocation(use.walk.op.file, use.walk.tensor.json_path),
            expected="one stick dim",
            found=f"{use.walk.tensor.stick_dims} of sizes {use.walk.tensor.stick_sizes}",
        )
    stick_dim, lanes = use.walk.tensor.stick_dims[0], use.walk.tensor.stick_sizes[0]
    sizes = list(dims.values())
    walked = [strides[dim] * (lanes if dim == stick_dim else 1) for dim in dims]
    lane_stride = strides.get(stick_dim, -1)
    for k, dim in enumerate(dims):
        if dim in use.sized and use.walk.op.extents[dim] <= (lanes if dim == stick_dim else 1):
            walked[k] = -1
    if not sizes:
        sizes, walked = [1], [-1]
    return SpyreTensorLayout((*sizes, lanes), (*walked, lane_stride), use.walk.tensor.data_format)


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
    for owner, uses in uses_by_argument(bundle, values).items():
        for use in uses:
            execute = use.walk.execute.index
            operations[execute] = use.walk.op
            if owner - first in known:
                tags[execute][use.walk.tensor.index] = known[owner - first]
    findings: list[Finding] = []
    for number, op in sorted(operations.items(), key=lambda pair: pair[0]):
        spec = find_op(op.name)
        if spec is not None:
            findings += arrangement_faults(op, spec, tags[number])
    return tuple(dict.fromkeys(findings))
