"""`insert_bmm_padding`: K of every matmul in whole sticks.

The left factor gets zeros in the lanes beyond K, the right one rows of zeros. Source: operations
reference §4; hardware reference §4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.inductor.kernel_passes.operations import KernelOperations
from spyre.torch_backend.inductor.loop_paths import LoopPath
from spyre.torch_backend.program.op_spec import OpKind, OpSpec
from spyre.torch_backend.program.operations import is_padded
from spyre.torch_backend.program.value import Value


def insert_bmm_padding(kernel: KernelOperations) -> KernelOperations:
    """The operations with those that pad factors before the matmuls that need them.

    A factor that several matmuls of the same loop body share is padded once.
    """
    padding = _Padding(kernel.low)
    for spec, path in zip(kernel.specs, kernel.paths, strict=True):
        padding.take(spec, path)
    return replace(kernel, specs=tuple(padding.specs), paths=tuple(padding.paths))


class _Padding:
    """``made``: padded factors by the factor and its loops, as long as neither is written to."""

    def __init__(self, low: Lowering) -> None:
        self._low = low
        self._made: dict[tuple[bool, Value, LoopPath], Value] = {}
        self.specs: list[OpSpec] = []
        self.paths: list[LoopPath] = []

    def take(self, spec: OpSpec, path: LoopPath) -> None:
        """The next operation, behind what it needs."""
        if spec.kind is OpKind.MATMUL and not is_padded(*spec.inputs):
            rank = len(spec.output.sizes)
            left, right = spec.inputs
            columns, rows = {rank - 1: None, rank: rank - 1}, {rank - 2: None, rank: rank - 2}
            left = self._padded(True, left, _along(path, columns))
            right = self._padded(False, right, _along(path, rows))
            spec = replace(spec, inputs=(left, right))
        self.specs.append(spec)
        self.paths.append(path)
        written = spec.output.region
        self._made = {key: v for key, v in self._made.items() if key[1].region != written}

    def _padded(self, is_left: bool, value: Value, path: LoopPath) -> Value:
        key = (is_left, value, path)
        if key not in self._made:
            builder = self._low.builder
            before, builder.specs = builder.specs, []
            pad = self._low.padded_left if is_left else self._low.padded_right
            self._made[key] = pad(value)
            self.specs += builder.specs
            self.paths += [path] * len(builder.specs)
            builder.specs = before
        return self._made[key]


def _along(path: LoopPath, dims: Mapping[int, int | None]) -> LoopPath:
    """The loops as the operations on a factor see them, which has other dims than the matmul."""
    return path.seen_as(dims) if path else path
