"""`OpSpec`: one operation of a device program, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from spyre.torch_backend.program.value import Value, narrowed


class OpKind(StrEnum):
    """How an operation walks its tensors."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    MATMUL = "matmul"
    RESTICKIFY = "restickify"
    TOPK = "topk"
    GATHER = "gather"


@dataclass(frozen=True, slots=True)
class Instruction:
    """What an operation does, whatever its tensors are; the fields are those of `OpSpec`."""

    kind: OpKind
    name: str
    constants: Mapping[str, int] = field(default_factory=dict)
    mask_from: int = 0
    lane_multiple: int = 0


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One SDSC to be.

    ``name``: opFuncName, of a reduction without the suffix ``nonstick``. ``dims``: host dims a
    reduction reduces, or the one a top-k or gather goes along. ``mask_from``: lane elements of the
    first input from there on count as 0. ``lane_multiple``: elements a lane dim is walked in,
    default one stick. ``part``: (dim, start, length) of the output that it writes, default all of
    it; along lanes it begins with a stick.
    """

    kind: OpKind
    name: str
    inputs: tuple[Value, ...]
    output: Value
    dims: tuple[int, ...] = ()
    constants: Mapping[str, int] = field(default_factory=dict)
    mask_from: int = 0
    lane_multiple: int = 0
    part: tuple[int, int, int] | None = None

    @property
    def instruction(self) -> Instruction:
        """The operation without its tensors."""
        return Instruction(self.kind, self.name, self.constants, self.mask_from, self.lane_multiple)

    @property
    def written(self) -> Value:
        """What it writes of the output."""
        return self.output if self.part is None else narrowed(self.output, *self.part)

    def regions(self) -> tuple[int, ...]:
        """Regions it touches, the output's last."""
        return (*(value.region for value in self.inputs), self.output.region)

    def into(self, region: int, target: Value) -> OpSpec:
        """The operation with the result that lies in ``region`` in ``target`` instead."""
        output = target if self.output.region == region else self.output
        inputs = tuple(target if v.region == region else v for v in self.inputs)
        return replace(self, inputs=inputs, output=output)

    def __str__(self) -> str:
        inputs = ", ".join(map(_text, self.inputs))
        over = f" over {list(self.dims)}" if self.dims else ""
        part = "" if self.part is None else str(list(self.part))
        return f"{_text(self.output)}{part} = {self.name}({inputs}){over}"


def _text(value: Value) -> str:
    return f"%{value.region}:{list(value.sizes)}@{value.dtype}"
