"""`KernelOperations`: what a kernel consists of before its operations become specs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spyre.torch_backend.eager.lowering import Constant, Lowering, scalar_view
from spyre.torch_backend.inductor.loop_paths import LoopPath
from spyre.torch_backend.program.op_spec import OpSpec
from spyre.torch_backend.program.value import Value


class KernelLowering(Lowering):
    """A lowering that leaves to passes what eager mode does at once: K of matmuls is not padded,
    and every use of a number is a constant of its own. Belongs to one kernel, so to one thread.
    """

    def left_factor(self, left: Value, rank: int) -> Value:
        """``left[.., M, K]`` of ``rank`` dims with K along the lanes."""
        return self.unpadded_left(left, rank)

    def right_factor(self, right: Value, rank: int) -> Value:
        """``right[.., K, N]`` of ``rank`` dims with N along the lanes."""
        return self.unpadded_right(right, rank)

    def _constant(self, number: float, dtype: str) -> Value:
        self.constants[self.builder.arguments] = Constant(float(number), dtype)
        return self.builder.argument(scalar_view(dtype), dtype, True)


@dataclass(frozen=True, slots=True)
class KernelOperations:
    """Operations in their order, and the loops around each. ``low``: has their memory."""

    low: Lowering
    specs: tuple[OpSpec, ...]
    paths: tuple[LoopPath, ...]

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        read = {region for spec in self.specs for region in spec.regions()}
        for region in sorted(read):
            argument = self.low.builder.regions[region].argument
            if (constant := self.low.constants.get(argument)) is not None:
                yield f"%{region} = {constant.number}, {constant.dtype}, argument {argument}"
        for spec, path in zip(self.specs, self.paths, strict=True):
            loops = f"    in loops {path.numbers} of {path.counts}" if path else ""
            masked = f", lanes from {spec.mask_from} on as 0" if spec.mask_from else ""
            yield f"{spec}{masked}{loops}"
