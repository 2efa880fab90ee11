"""Arguments of a bundle, from launch_spec.json or derived, with the caller's overrides.

Without launch_spec.json they follow from the memory that the SDSCs access: every operand in HBM is
traced to the parameter or segment its addresses start from, over all loop iterations, and the
operand with the largest allocation gives an argument its layout. Unpadded host shapes and host
strides cannot be derived: they are assumed row-major, with a warning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import FORMATS, find_host_dtype
from spyre.errors import Finding, JsonLocation, LaunchError, Severity, UnsupportedError
from spyre.hw.counters import UNLABELLED, ExecuteLabels
from spyre.hw.linking import AddressOwners, TracedExecute, Walk, trace
from spyre.hw.ops import STANDARD, arrangement_faults, find_op
from spyre.hw.spec import REGIONS
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.operation import Footprint, Operation, footprint
from spyre.mlir.program import Parameter, check_sizes
from spyre.runtime.arguments.host_tensor import (
    HostTensor,
    TensorSpec,
    conform_tensor,
    random_tensor,
)
from spyre.runtime.arguments.specs import (
    ArgumentSpec,
    KernelArguments,
    argument_name,
    arguments_of_spec,
    with_alias,
    with_shapes,
    with_strides,
)
from spyre.runtime.program import (
    DERIVED_EMITTER,
    POOL,
    CompiledBundle,
    LaunchSpec,
    LoweredBundle,
    LoweredProgram,
    Role,
    find_launch_spec,
    owner_of,
    read_launch_spec,
    require_no_size,
)

T = TypeVar("T")

_HOST_DTYPES = {row.name: row.host_dtype for row in FORMATS.values() if row.host_dtype}


def read_arguments(
    bundle: LoweredBundle,
    values: Mapping[str, int] | None = None,
    shapes: Sequence[TensorSpec] = (),
    strides: Mapping[int, Sequence[int]] | None = None,
    aliases: Mapping[int, int] | None = None,
) -> KernelArguments:
    """Arguments of ``bundle``.

    ``values``: runtime sizes and index parameters by name. ``shapes``: of the inputs, in order;
    they are checked against a launch_spec.json (SPY365), or are the shapes if there is none.
    ``strides``: host strides (elements) by argument index. ``aliases``: argument index → index
    of the argument whose memory it shares. LaunchError SPY173 for a size out of its range.
    """
    check_sizes(bundle.program.parameters, values or {})
    spec = given_launch_spec(bundle)
    if spec is not None:
        arguments = arguments_of_spec(spec, values, _maxima(bundle, spec))
    else:
        arguments = derive_arguments(bundle, values or {})
    if shapes:
        arguments = with_shapes(arguments, shapes)
    if strides:
        arguments = _restrided(arguments, strides)
    for alias, target in (aliases or {}).items():
        arguments = with_alias(arguments, alias, target)
    return arguments


def given_launch_spec(bundle: LoweredProgram) -> LaunchSpec | None:
    """The launch_spec.json of the bundle; None without one, or if spyre-compile derived it."""
    if isinstance(bundle, CompiledBundle):
        return bundle.launch_spec
    path = find_launch_spec(bundle.directory)
    spec = None if path is None else read_launch_spec(path)
    return None if spec is None or spec.emitter == DERIVED_EMITTER else spec


def _maxima(bundle: LoweredBundle, spec: LaunchSpec) -> dict[str, int]:
    """The largest value of every runtime size, by the names bundle, SDSCs and launch spec use."""
    maxima = {
        kind.pytorch_sym: kind.max_value
        for kind in spec.symbol_kinds or ()
        if kind.pytorch_sym is not None and kind.max_value is not None
    }
    for operation in bundle.operations.values():
        for size in operation.symbolic_dims.values():
            maxima[size.tag] = size.maximum
    for parameter in bundle.program.parameters:
        if parameter.max_value is not None:
            maxima[parameter.name] = parameter.max_value
    return maxima


def _restrided(arguments: KernelArguments, strides: Mapping[int, Sequence[int]]) -> KernelArguments:
    known = [a.arg_index for a in arguments.arguments]
    if unknown := sorted(set(strides) - set(known)):
        raise LaunchError(
            "SPY363", f"strides are given for argument {unknown[0]}", expected=f"one of {known}"
        )
    changed = tuple(
        with_strides(a, strides[a.arg_index]) if a.arg_index in strides else a
        for a in arguments.arguments
    )
    return replace(arguments, arguments=changed)


# --- inputs ---------------------------------------------------------------------------------------


InputValue = HostTensor | npt.NDArray[Any]
Inputs = Sequence[InputValue] | Mapping[str | int, InputValue] | None


def prepare_inputs(
    arguments: Sequence[ArgumentSpec], inputs: Inputs, seed: int
) -> tuple[HostTensor, ...]:
    """Return a tensor per input argument. ``inputs`` None: random numbers, reproducible by
    ``seed``, and the numbers of the compiled function.

    A mapping may use names, also those of the compiled function, or argument indices, and may omit
    numbers. LaunchError SPY367 for a wrong number of inputs or an unknown name, SPY333 for a
    shape, SPY334 for a dtype.
    """
    if inputs is None:
        return tuple(
            random_tensor(a.shape, a.dtype_name, seed + k, a.name)
            if a.value is None
            else _number(a, a.value)
            for k, a in enumerate(arguments)
        )
    values = _by_name(arguments, inputs) if isinstance(inputs, Mapping) else list(inputs)
    if len(values) != len(arguments):
        raise _mismatch(arguments, f"{len(values)} inputs")
    return tuple(_host_tensor(v, a) for v, a in zip(values, arguments, strict=True))


def _by_name(
    arguments: Sequence[ArgumentSpec], inputs: Mapping[str | int, InputValue]
) -> list[InputValue]:
    known: dict[str | int, ArgumentSpec] = {a.given_name: a for a in arguments if a.given_name}
    known |= {key: a for a in arguments for key in (a.name, a.arg_index)}
    unknown = [key for key in inputs if key not in known]
    chosen = {known[key].arg_index: value for key, value in inputs.items() if key in known}
    if unknown or len(chosen) != len(inputs):
        raise _mismatch(arguments, f"inputs {', '.join(map(str, inputs)) or 'of no name'}")
    numbers = {a.arg_index: _number(a, a.value) for a in arguments if a.value is not None}
    values = {**numbers, **chosen}
    if any(a.arg_index not in values for a in arguments):
        raise _mismatch(arguments, f"inputs {', '.join(map(str, inputs)) or 'of no name'}")
    return [values[a.arg_index] for a in arguments]


def _number(argument: ArgumentSpec, value: float) -> HostTensor:
    filled = np.full(argument.shape, value)
    return HostTensor.from_values(argument.name, filled, argument.dtype_name)


def _mismatch(arguments: Sequence[ArgumentSpec], inputs: str) -> LaunchError:
    listed = ", ".join(f"{a.name} ({a.host_spec})" for a in arguments) or "none"
    message = "the inputs given do not match the kernel's"
    expected = f"{len(arguments)} inputs: {listed}"
    return LaunchError("SPY367", message, expected=expected, found=inputs)


def _host_tensor(value: InputValue, argument: ArgumentSpec) -> HostTensor:
    """An input of ``argument``; bit patterns of a dtype numpy lacks are taken as such."""
    if not isinstance(value, HostTensor):
        array, dtype = np.asarray(value), find_host_dtype(argument.dtype_name)
        is_bits = dtype.holds_bits and array.dtype == np.dtype(dtype.storage_dtype)
        value = HostTensor.from_array(argument.name, array, dtype.name if is_bits else None)
    return conform_tensor(value, argument.host_spec)


# --- derived arguments ----------------------------------------------------------------------------


class ArgumentUse(msgspec.Struct, frozen=True):
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
    message = f"no value for parameter %{parameter.name}"
    expected = f"a value for {parameter.name}"
    found = ", ".join(values) or "no values"
    raise LaunchError("SPY362", message, parameter.location, expected=expected, found=found)


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
        message = f"the host dtype of {name} cannot be derived"
        expected = f"a launch_spec.json, or one of {', '.join(_HOST_DTYPES)}"
        raise LaunchError("SPY368", message, expected=expected, found=data_format)
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
