"""Operations over packed sticks and windows, built for tests: literal addresses, any split."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.operation.operation import Component, Operation, Padding, Tensor, Window, footprint
from tests.hw.harness import Array, map_tensors, region

FORMAT_OF = {"": "SEN169_FP16", "fp8": "SEN143_FP8", "int8": "SENINT8", "int4": "SENINT4"}
"""By the suffix of batchmatmul and conv2d."""


def operand(
    k: int,
    dims: tuple[str, ...],
    stick: tuple[tuple[str, int], ...],
    data_format: str = "SEN169_FP16",
    lx: bool = False,
    scale: Mapping[str, int] | None = None,
) -> OperandSpec:
    return OperandSpec(
        dims,
        stick,
        4096 + k * (1 << 18) if lx else region(k),
        scale or {},
        data_format,
        Component.LX if lx else Component.HBM,
        role=f"R{k}",
    )


def build(
    spec: OperationSpec,
    windows: Mapping[str, Window] | None = None,
    padding: Mapping[str, Padding] | None = None,
) -> Operation:
    """``spec`` with windows and the padding of its first input, starts worked out anew."""
    op = replace(build_operation(spec), windows=dict(windows or {}))

    def changed(tensor: Tensor) -> Tensor:
        first = tensor.index == op.inputs[0].index
        word = max(tensor.word_length_bytes, 1)
        return replace(tensor, word_length_bytes=word, padding=dict(padding or {}) if first else {})

    op = map_tensors(op, changed)
    return map_tensors(op, lambda tensor: replace(tensor, starts=_starts(op, tensor, spec)))


def _starts(op: Operation, tensor: Tensor, spec: OperationSpec) -> tuple[int, ...]:
    base = next(
        int(o.base)  # type: ignore[arg-type]
        for o in (*spec.inputs, *spec.outputs)
        if o.role == tensor.role
    )
    if tensor.is_local:
        return (base,) * len(op.cores)
    pitch, sticks = footprint(op, tensor).pitch_bytes, tensor.sticks
    starts = []
    for slices in op.core_slices:
        address = base
        for dim in tensor.dims:
            window = op.window_of(tensor, dim)
            origin = slices[dim] * (op.extents[dim] // op.slices[dim])
            if tensor.holds(dim):
                origin *= window.stride if window else 1
                address += origin // sticks.get(dim, 1) * pitch[dim]
        starts.append(address)
    return tuple(starts)


def a_stick(kind: str, k: str, row: str) -> tuple[tuple[str, int], ...]:
    if kind == "int4":
        return ((k, 16), (row, 2), (k, 8))
    return ((k, 128 if kind else 64),)


def b_stick(kind: str, k: str, n: str) -> tuple[tuple[str, int], ...]:
    pairs = {"int4": 4, "int8": 2, "fp8": 2}.get(kind)
    return ((k, pairs), (n, 64)) if pairs else ((n, 64),)


def whole_numbers(low: int, high: int):
    """Fill with integers low..high - 1, as codes."""

    def fill(rng: np.random.Generator, count: int) -> Array:
        return rng.integers(low, high, count)

    return fill
