"""The inputs of a run as host tensors: given in order, by name or index, or made at random.

Used by :mod:`.session`; every tensor is checked against its argument before anything moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import find_host_dtype
from spyre.errors import LaunchError
from spyre.runtime.arguments import ArgumentSpec
from spyre.runtime.host_tensor import HostTensor, conform_tensor, random_tensor

InputValue = HostTensor | npt.NDArray[Any]
Inputs = Sequence[InputValue] | Mapping[str | int, InputValue] | None


def prepare_inputs(
    arguments: Sequence[ArgumentSpec], inputs: Inputs, seed: int
) -> tuple[HostTensor, ...]:
    """A tensor per input argument. None: random numbers, reproducible by ``seed``.

    A mapping may use names or argument indices. LaunchError SPY367 for a wrong number or an
    unknown name, SPY333 for a shape, SPY334 for a dtype.
    """
    if inputs is None:
        return tuple(
            random_tensor(a.shape, a.dtype_name, seed + k, a.name) for k, a in enumerate(arguments)
        )
    values = _by_name(arguments, inputs) if isinstance(inputs, Mapping) else list(inputs)
    if len(values) != len(arguments):
        raise _mismatch(arguments, f"{len(values)} inputs")
    return tuple(_host_tensor(v, a) for v, a in zip(values, arguments, strict=True))


def _by_name(
    arguments: Sequence[ArgumentSpec], inputs: Mapping[str | int, InputValue]
) -> list[InputValue]:
    known = {key: a for a in arguments for key in (a.name, a.arg_index)}
    unknown = [key for key in inputs if key not in known]
    chosen = {known[key].arg_index: value for key, value in inputs.items() if key in known}
    missing = [a.name for a in arguments if a.arg_index not in chosen]
    if unknown or missing or len(chosen) != len(inputs):
        raise _mismatch(arguments, f"inputs {', '.join(map(str, inputs)) or 'of no name'}")
    return [chosen[a.arg_index] for a in arguments]


def _mismatch(arguments: Sequence[ArgumentSpec], found: str) -> LaunchError:
    listed = ", ".join(f"{a.name} ({a.host_spec})" for a in arguments) or "none"
    return LaunchError(
        "SPY367",
        "the inputs given do not match the kernel's",
        expected=f"{len(arguments)} inputs: {listed}",
        found=found,
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
