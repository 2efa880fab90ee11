"""Arguments of a bundle: from launch_spec.json, else derived; then what the caller overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spyre.errors import LaunchError
from spyre.mlir.arguments import check_sizes
from spyre.runtime.arguments import (
    KernelArguments,
    arguments_of_spec,
    with_alias,
    with_shapes,
    with_strides,
)
from spyre.runtime.derived_arguments import derive_arguments
from spyre.runtime.host_tensor import TensorSpec
from spyre.runtime.kernel_source import KernelSource
from spyre.runtime.launch_spec import (
    DERIVED_EMITTER,
    LaunchSpec,
    find_launch_spec,
    read_launch_spec,
)
from spyre.runtime.spyrecode.compiled_kernel import CompiledKernel


def read_arguments(
    bundle: KernelSource,
    values: Mapping[str, int] | None = None,
    shapes: Sequence[TensorSpec] = (),
    strides: Mapping[int, Sequence[int]] | None = None,
    aliases: Mapping[int, int] | None = None,
) -> KernelArguments:
    """Arguments of ``bundle``.

    ``values``: runtime sizes and index parameters by name. ``shapes``: of the inputs, in order;
    they are checked against a launch_spec.json (SPY365) and shape the inputs where there is none.
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


def given_launch_spec(bundle: KernelSource) -> LaunchSpec | None:
    """The launch_spec.json of the bundle; None without one, or if spyre-compile derived it."""
    if isinstance(bundle, CompiledKernel):
        return bundle.launch_spec
    path = find_launch_spec(bundle.directory)
    spec = None if path is None else read_launch_spec(path)
    return None if spec is None or spec.emitter == DERIVED_EMITTER else spec


def _maxima(bundle: KernelSource, spec: LaunchSpec) -> dict[str, int]:
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
