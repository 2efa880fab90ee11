"""Arguments of a bundle, from launch_spec.json or derived, with the caller's overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import find_host_dtype
from spyre.errors import LaunchError
from spyre.mlir.program import check_sizes
from spyre.runtime.arguments.derived import derive_arguments
from spyre.runtime.arguments.host_tensor import (
    HostTensor,
    TensorSpec,
    conform_tensor,
    random_tensor,
)
from spyre.runtime.arguments.specs import (
    ArgumentSpec,
    KernelArguments,
    arguments_of_spec,
    with_alias,
    with_shapes,
    with_strides,
)
from spyre.runtime.program import (
    DERIVED_EMITTER,
    CompiledBundle,
    LaunchSpec,
    LoweredBundle,
    LoweredProgram,
    find_launch_spec,
    read_launch_spec,
)


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


InputValue = HostTensor | npt.NDArray[Any]
Inputs = Sequence[InputValue] | Mapping[str | int, InputValue] | None


def prepare_inputs(
    arguments: Sequence[ArgumentSpec], inputs: Inputs, seed: int
) -> tuple[HostTensor, ...]:
    """A tensor per input argument. None: random numbers, reproducible by ``seed``; for those that
    are numbers of the compiled function, these.

    A mapping may use names, also those of the compiled function, or argument indices, and leave out
    its numbers. LaunchError SPY367 for a wrong number of inputs or an unknown name, SPY333 for a
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
    return LaunchError(
        "SPY367",
        "the inputs given do not match the kernel's",
        expected=f"{len(arguments)} inputs: {listed}",
        found=inputs,
    )


def _host_tensor(value: InputValue, argument: ArgumentSpec) -> HostTensor:
    if not isinstance(value, HostTensor):
        value = _from_array(np.asarray(value), argument)
    return conform_tensor(value, argument.host_spec)


def _from_array(array: npt.NDArray[Any], argument: ArgumentSpec) -> HostTensor:
    """An array; bit patterns of a dtype numpy lacks are taken as such."""
    dtype = find_host_dtype(argument.dtype_name)
    is_bits = dtype.holds_bits and array.dtype == np.dtype(dtype.storage_dtype)
    return HostTensor.from_array(argument.name, array, dtype.name if is_bits else None)
