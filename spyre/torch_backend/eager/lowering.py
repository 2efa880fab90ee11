"""What a lowering gets: values for its tensors and numbers, and the operations of the card.

A *lowering* turns one aten operation into a device program: it takes a `Lowering` and one value
per tensor or number, and returns the values that are its results.
"""

from __future__ import annotations

from dataclasses import dataclass

from spyre.layout.device_view import DeviceView
from spyre.torch_backend.program.builder import ProgramBuilder
from spyre.torch_backend.program.operations import Operations
from spyre.torch_backend.program.value import Value, device_format


@dataclass(frozen=True, slots=True)
class Constant:
    """A number a program reads from memory, in a format of the card."""

    number: float
    dtype: str

    @property
    def key(self) -> tuple[str, str]:
        """Equal for what is the same in memory, unlike ``==``: zeros have signs, NaN is NaN."""
        return self.number.hex(), self.dtype


class Lowering(Operations):
    """Operations, and the arguments the program turns out to need.

    ``constants``: by argument number.
    """

    def __init__(self) -> None:
        super().__init__(ProgramBuilder(), self._constant)
        self.constants: dict[int, Constant] = {}
        self._known: dict[tuple[str, str], Value] = {}

    def _constant(self, number: float, dtype: str) -> Value:
        constant = Constant(float(number), dtype)
        if constant.key not in self._known:
            self.constants[self.builder.arguments] = constant
            self._known[constant.key] = self.builder.argument(scalar_view(dtype), dtype, True)
        return self._known[constant.key]


def scalar_view(dtype: str) -> DeviceView:
    """The view of a tensor of rank 0."""
    return DeviceView((), device_format(dtype))
