"""Twin of packed matmuls, convolutions and pooling: coordinates of windows, element by element.

Rule (operations reference §7): the stored coordinate of the first input along a windowed dim is
position · stride + place · dilation, less the front padding where memory does not hold it; what
lies outside of the stored extent is padding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.hw.ops.spec_choices import WINDOW_MAX_OUTSIDE
from spyre.hw.ops.table import OpDefinition
from spyre.hw.reference.addresses import Coordinates, Int64Array, slice_origin
from spyre.hw.reference.execution import Execution
from spyre.hw.reference.packed import read_packed, write_packed
from spyre.hw.reference.values import constant
from spyre.mlir.operation.operation import Operation, Padding

Array = npt.NDArray[Any]
_NOT_STORED = (None, Padding.NONE, Padding.IMPLIED)


def input_coordinates(
    op: Operation, points: Coordinates, core: int
) -> tuple[dict[str, Int64Array], Array]:
    """Local stored coordinates of the first input at ``points`` of a core's box, and where they are
    inside of it.
    """
    tensor = op.inputs[0]
    local = dict(points)
    inside = np.ones(local[op.dims[0]].shape, np.bool_)
    for dim, window in op.windows.items():
        implied = tensor.padding.get(dim) in _NOT_STORED
        front = window.pad_front if implied else 0
        extent = window.total - (window.pad_front + window.pad_back if implied else 0)
        reach = local[window.window_dim] * window.dilation - front
        whole = (points[dim] + slice_origin(op, core)[dim]) * window.stride + reach
        local[dim] = points[dim] * window.stride + reach
        inside &= (whole >= 0) & (whole < extent)
    return local, inside


def _window_places(op: Operation) -> list[str]:
    return [window.window_dim for window in op.windows.values()]


def _held(op: Operation, operand: int) -> list[bool]:
    """Dims an operand varies along; the first input also along the places of its windows."""
    places = _window_places(op) if operand == 0 else []
    return [op.tensors[operand].holds(dim) or dim in places for dim in op.dims]


def _part(execution: Execution, operand: int, core: int, outside: float = 0.0) -> Array:
    """Numbers of an operand over the dims it varies along, padding replaced by ``outside``."""
    stored: Coordinates = execution.local
    inside = np.ones(execution.local[execution.op.dims[0]].shape, np.bool_)
    if operand == 0:
        stored, inside = input_coordinates(execution.op, execution.local, core)
    first = tuple(slice(None) if held else 0 for held in _held(execution.op, operand))
    inside = inside[first]
    stored = {dim: np.where(inside, c[first], 0) for dim, c in stored.items()}
    return np.where(inside, read_packed(execution, operand, core, stored), outside)


def _sharing(op: Operation, cores: Sequence[int]) -> Iterator[list[int]]:
    """Cores that work on the same part of the output, in order of the other slices.

    Cores with all slices equal repeat the work and share nothing.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    seen: Counter[tuple[int, ...]] = Counter()
    for core in cores:
        place = tuple(op.core_slices[core].get(dim, 0) for dim in op.dims)
        kept = [n for n, dim in zip(place, op.dims, strict=True) if op.outputs[0].holds(dim)]
        groups.setdefault((*kept, seen[place]), []).append(core)
        seen[place] += 1
    for group in groups.values():
        yield sorted(group, key=lambda c: tuple(op.core_slices[c].get(d, 0) for d in op.dims))


def _write(execution: Execution, core: int, kept: Array) -> None:
    """Write an array over the output's dims."""
    first = tuple(slice(None) if held else 0 for held in _held(execution.op, execution.output))
    stored = {dim: c[first] for dim, c in execution.local.items()}
    write_packed(execution, core, stored, kept)


def _formula(op: Operation, operands: Sequence[int]) -> str:
    letters = dict(zip(op.dims, "abcdefghijkl", strict=False))
    terms = [
        "".join(letters[d] for d, held in zip(op.dims, _held(op, k), strict=True) if held)
        for k in operands
    ]
    return f"{','.join(terms[:-1])}->{terms[-1]}"


def run_contract(execution: Execution, spec: OpDefinition) -> None:
    """Σ A·B over all dims the output lacks; partial sums of cores in order, rounded to float32."""
    op = execution.op
    exact = spec.kernel_op.startswith("int")
    for group in _sharing(op, execution.cores):
        total: Array | None = None
        for core in group:
            a, b = (_part(execution, k, core) for k in (0, 1))
            with np.errstate(all="ignore"):
                partial = np.einsum(_formula(op, (0, 1, 2)), a, b, optimize=True)
                partial = partial if exact else partial.astype(np.float32)
                total = partial if total is None else total + partial
        assert total is not None
        _write(execution, group[0], total)


def run_windowing(execution: Execution, spec: OpDefinition) -> None:
    """Pooling and depthwise convolution, in float64 and rounded once."""
    op = execution.op
    places = tuple(i for i, dim in enumerate(_dims_of(op, 0)) if dim in _window_places(op))
    for core in execution.cores:
        if spec.kernel_op == "max":
            values = _part(execution, 0, core, WINDOW_MAX_OUTSIDE)
            _write(execution, core, np.fmax.reduce(values, axis=places, initial=-np.inf))
            continue
        operands = [_part(execution, k, core) for k in range(spec.inputs)]
        numbers = (*range(spec.inputs), execution.output)
        with np.errstate(all="ignore"):
            result = np.einsum(_formula(op, numbers), *operands)
            if spec.constants:
                result = result.astype(np.float32) * constant(op, spec.constants[0])
        _write(execution, core, result)


def _dims_of(op: Operation, operand: int) -> list[str]:
    return [dim for dim, held in zip(op.dims, _held(op, operand), strict=True) if held]
