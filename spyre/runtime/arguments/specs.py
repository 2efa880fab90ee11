"""The arguments of a kernel: role, host shape, dtype and layout of each.

They are read from launch_spec.json (here) or, without one, derived from the SDSCs
(:mod:`.read`). The spec contains no host strides: they follow from shape and layout if only one
choice fits, otherwise row-major is assumed unless the caller gives strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import msgspec
from msgspec.structs import replace

from spyre.errors import Finding, LaunchError, SpyreError
from spyre.layout import (
    SpyreTensorLayout,
    TransferGeometry,
    contiguous_strides,
    exact_geometry,
    transfer_geometry,
)
from spyre.runtime.arguments.host_tensor import TensorSpec
from spyre.runtime.program import VERSION, ArgumentEntry, LaunchSpec, Role

_MAX_PERMUTED_DIMS = 6


class ArgumentSpec(msgspec.Struct, frozen=True):
    """One argument.

    ``name``: ``arg_K``. ``shape`` and ``strides`` (elements): the host extents ``layout`` was made
    for. ``dtype_name``: torch name. ``given_name``: parameter name in the compiled function, ""
    if unknown. ``value``: of all elements, if it is a constant of the function.
    """

    arg_index: int
    name: str
    role: Role
    shape: tuple[int, ...]
    dtype_name: str
    layout: SpyreTensorLayout
    strides: tuple[int, ...]
    given_name: str = ""
    value: float | None = None

    @property
    def is_input(self) -> bool:
        """True if the kernel reads it; in-place arguments are inputs and outputs."""
        return self.role is not Role.OUTPUT

    @property
    def is_output(self) -> bool:
        return self.role is not Role.INPUT

    @property
    def host_spec(self) -> TensorSpec:
        """The shape and dtype of a host tensor for this argument."""
        return TensorSpec(self.name, self.shape, self.dtype_name)


class KernelArguments(msgspec.Struct, frozen=True):
    """All arguments in launch order, the size of the pool in bytes (0: no pool), and findings.

    ``is_derived``: there was no launch_spec.json. ``aliases``: (argument, argument index) pairs of
    further arguments that use the memory of one of ``arguments``.
    """

    arguments: tuple[ArgumentSpec, ...]
    pool_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    is_derived: bool = False
    aliases: tuple[tuple[ArgumentSpec, int], ...] = ()

    @property
    def inputs(self) -> tuple[ArgumentSpec, ...]:
        """Arguments the kernel reads, in launch order."""
        return tuple(a for a in self.arguments if a.is_input)

    @property
    def outputs(self) -> tuple[ArgumentSpec, ...]:
        """Arguments the kernel writes, in launch order."""
        return tuple(a for a in self.arguments if a.is_output)


def arguments_of_spec(
    spec: LaunchSpec,
    sizes: Mapping[str, int] | None = None,
    maxima: Mapping[str, int] | None = None,
) -> KernelArguments:
    """Return the arguments of a launch_spec.json; ``sizes``: values of its runtime sizes.

    ``maxima``: the largest value of each size, if known; memory is laid out for it.
    LaunchError SPY366 for a size without a value, SPY322 for a layout that does not fit its shape.
    """
    arguments = tuple(
        _of_launch_argument(argument, sizes or {}, maxima or {}) for argument in spec.args
    )
    return KernelArguments(arguments, spec.pool_size)


def with_alias(arguments: KernelArguments, alias: int, target: int) -> KernelArguments:
    """Return ``arguments`` with argument ``alias`` in the memory of argument ``target``.

    Only ``target`` stays an input or output, in place if either is both or they differ.
    LaunchError SPY363 for an unknown index.
    """
    by_index = {a.arg_index: a for a in arguments.arguments}
    for index in (alias, target):
        if index not in by_index:
            raise LaunchError(
                "SPY363", f"there is no argument {index} to alias", expected=f"{list(by_index)}"
            )
    pair = (by_index.pop(alias), by_index[target])
    roles = {a.role for a in pair}
    role = roles.pop() if len(roles) == 1 else Role.INPUT_OUTPUT
    by_index[target] = replace(by_index[target], role=role)
    return replace(
        arguments,
        arguments=tuple(by_index.values()),
        aliases=(*arguments.aliases, (pair[0], target)),
    )


def spec_of_arguments(
    arguments: KernelArguments, kernel_name: str, symbolic: bool = True, emitter: str | None = None
) -> LaunchSpec:
    """Return the launch spec of ``arguments``, the inverse of `arguments_of_spec`.

    ``symbolic``: the bundle takes addresses as parameters.
    """
    specs = [*arguments.arguments, *(spec for spec, _ in arguments.aliases)]
    launch_arguments = tuple(
        ArgumentEntry(
            spec.arg_index,
            spec.role,
            spec.shape,
            spec.dtype_name,
            spec.layout,
            spec.given_name or None,
            spec.value,
        )
        for spec in sorted(specs, key=lambda spec: spec.arg_index)
    )
    return LaunchSpec(
        VERSION, kernel_name, launch_arguments, arguments.pool_bytes, symbolic, emitter
    )


def argument_name(arg_index: int) -> str:
    return f"arg_{arg_index}"


def _of_launch_argument(
    argument: ArgumentEntry, sizes: Mapping[str, int], maxima: Mapping[str, int]
) -> ArgumentSpec:
    shape = tuple(_size(argument, entry, sizes) for entry in argument.shape)
    names = zip(argument.shape, shape, strict=True)
    largest = tuple(maxima.get(str(name), size) for name, size in names)
    layout = argument.layout
    if layout is None or layout == SpyreTensorLayout.from_host(largest, argument.dtype):
        layout = layout_for_largest(shape, largest, argument.dtype)
    return ArgumentSpec(
        argument.arg_index,
        argument_name(argument.arg_index),
        argument.role,
        shape,
        argument.dtype,
        layout,
        find_host_strides(shape, layout),
        argument.name or "",
        argument.value,
    )


def layout_for_largest(
    shape: Sequence[int], largest: Sequence[int], dtype: str
) -> SpyreTensorLayout:
    """Default layout with room for ``largest`` that holds a dense host tensor of ``shape``.

    Memory of a symbolic dim keeps the pitches of its maximum (SDSC reference §11).
    """
    if tuple(shape) == tuple(largest):
        return SpyreTensorLayout.from_host(shape, dtype)
    strides = contiguous_strides(shape)
    rank = len(shape)
    layout = SpyreTensorLayout.from_dim_order(largest, strides, dtype, range(rank))
    walked = [*range(1, rank), 0, rank - 1]
    steps = list(layout.stride_map)
    for k, dim in enumerate(walked):
        counts_sticks = dim == rank - 1 and k < rank
        if shape[dim] <= (layout.elements_per_stick if counts_sticks else 1):
            steps[k] = -1
    return replace(layout, stride_map=tuple(steps))


def _size(argument: ArgumentEntry, entry: int | str, sizes: Mapping[str, int]) -> int:
    if isinstance(entry, int):
        return entry
    if entry not in sizes:
        message = f"runtime size {entry!r} of argument {argument.arg_index} has no value"
        found = ", ".join(sizes) or "no values"
        raise LaunchError("SPY366", message, expected=f"a value for {entry}", found=found)
    return int(sizes[entry])


# --- shapes given by the caller ---------------------------------------------------------------


def with_shapes(arguments: KernelArguments, shapes: Sequence[TensorSpec]) -> KernelArguments:
    """``arguments`` with the inputs' host shapes set to ``shapes``, one per input in order.

    Where a launch_spec.json gave the arguments, the shapes must be its. LaunchError SPY365.
    """
    inputs = arguments.inputs
    if len(shapes) != len(inputs):
        message = "the number of shapes is not the number of inputs"
        expected = f"{len(inputs)} shapes: {', '.join(str(a.host_spec) for a in inputs)}"
        raise LaunchError("SPY365", message, expected=expected, found=f"{len(shapes)}")
    reshape = _reshaped if arguments.is_derived else _checked
    changed = {a.arg_index: reshape(a, s) for a, s in zip(inputs, shapes, strict=True)}
    return replace(
        arguments, arguments=tuple(changed.get(a.arg_index, a) for a in arguments.arguments)
    )


def _checked(argument: ArgumentSpec, shape: TensorSpec) -> ArgumentSpec:
    if (shape.shape, shape.dtype_name) != (argument.shape, argument.dtype_name):
        message = f"the shape of {argument.name} contradicts launch_spec.json"
        raise LaunchError("SPY365", message, expected=str(argument.host_spec), found=str(shape))
    return argument


def _reshaped(argument: ArgumentSpec, shape: TensorSpec) -> ArgumentSpec:
    """A derived argument under a host shape whose default layout has the same device extents."""
    layout = SpyreTensorLayout.from_host(shape.shape, shape.dtype_name)
    if _long(layout.device_size) != _long(argument.layout.device_size):
        raise LaunchError(
            "SPY365",
            f"the shape given for {argument.name} does not fit its memory",
            expected=f"a shape like {argument.host_spec}, device extents "
            f"{list(argument.layout.device_size)}",
            found=f"{shape}, device extents {list(layout.device_size)}",
        )
    return replace(
        argument,
        shape=shape.shape,
        dtype_name=shape.dtype_name,
        layout=layout,
        strides=contiguous_strides(shape.shape),
    )


def _long(extents: Sequence[int]) -> list[int]:
    """Return the extents above 1 and the stick's, which are equal in two layouts of one memory."""
    return [n for n in extents[:-1] if n > 1] + [extents[-1]]


# --- host strides -----------------------------------------------------------------------------


def find_host_strides(shape: Sequence[int], layout: SpyreTensorLayout) -> tuple[int, ...]:
    """Return dense host strides (elements) that ``layout`` was made for.

    Of the orders of the host dims that fit, those with an exact geometry are preferred, then those
    in which one device dim walks each host dim but the one along the stick, then row-major.
    LaunchError SPY322 if none fits.
    """
    best: tuple[tuple[bool, int], tuple[int, ...]] | None = None
    failure: SpyreError | None = None
    for strides in _dense_strides(tuple(shape)):
        try:
            geometry = transfer_geometry(layout, shape, strides)
            score = (not geometry.exact, _split_dims(geometry))
        except LaunchError as error:
            failure = failure or error
            continue
        if best is None or score < best[0]:
            best = (score, strides)
        if best[0] == (False, 0):
            break
    if best is None:
        assert failure is not None
        raise failure
    return best[1]


def with_strides(argument: ArgumentSpec, strides: Sequence[int]) -> ArgumentSpec:
    """Return ``argument`` with host ``strides``. LaunchError SPY322 if they do not fit.

    Strides whose geometry is not exact do not fit if those of `find_host_strides` are exact.
    """
    layout, shape = argument.layout, argument.shape
    try:
        exact_geometry(layout, shape, strides)
    except LaunchError:
        transfer_geometry(layout, shape, strides)
        if transfer_geometry(layout, shape, find_host_strides(shape, layout)).exact:
            raise
    return replace(argument, strides=tuple(strides))


def _dense_strides(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Row-major strides, then those of every other order of the dims longer than 1."""
    row_major = contiguous_strides(shape)
    yield row_major
    long = [dim for dim, size in enumerate(shape) if size > 1]
    if len(long) > _MAX_PERMUTED_DIMS:  # too many orders to try
        return
    for order in permutations(long):
        strides, step = list(row_major), 1
        for dim in reversed(order):
            strides[dim] = step
            step *= shape[dim]
        yield tuple(strides)


def _split_dims(geometry: TransferGeometry) -> int:
    """Return the number of extra device dims per host dim, the one along the stick excluded."""
    walked = [h for h in geometry.host_dims if h >= 0 and h != geometry.host_dims[-1]]
    return len(walked) - len(set(walked))
