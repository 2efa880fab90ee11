"""The arguments of a bundle: from launch_spec.json, else derived; then what the caller overrides.

Also the digest by which a :class:`~spyre.runtime.session.Session` knows a bundle again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from spyre.errors import LaunchError
from spyre.mlir.arguments import check_sizes
from spyre.mlir.bundle import MODULE_FILE, SDSC_PATTERN, Bundle
from spyre.runtime.arguments import (
    KernelArguments,
    arguments_of_spec,
    with_alias,
    with_shapes,
    with_strides,
)
from spyre.runtime.derived_arguments import derive_arguments
from spyre.runtime.host_tensor import TensorSpec
from spyre.runtime.launch_spec import LaunchSpec, find_launch_spec, read_launch_spec


def read_arguments(
    bundle: Bundle,
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
    path = find_launch_spec(bundle.directory)
    if path is not None:
        spec = read_launch_spec(path)
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


def _maxima(bundle: Bundle, spec: LaunchSpec) -> dict[str, int]:
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


def content_digest(path: str | os.PathLike[str]) -> str:
    """Directory and SHA-256 of bundle.mlir and every SDSC file; "" for what cannot be read.

    Unreadable files are diagnosed by `load_bundle`, which follows.
    """
    given = Path(path)
    module = given / MODULE_FILE if given.is_dir() else given
    digest = hashlib.sha256(str(module.absolute()).encode())
    for file in (module, *sorted(module.parent.glob(SDSC_PATTERN))):
        digest.update(file.name.encode() + b"\0")
        if file.is_file():
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
