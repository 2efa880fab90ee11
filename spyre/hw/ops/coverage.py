"""The names the public specifications list, and how many of them run.

A name is implemented when it has a row in the op table, refused when a reason stands here, and
otherwise missing. Source of the list: operations reference §3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from spyre.hw.ops.table import OPS, OpDefinition, find_op


class Category(StrEnum):
    """The specification's grouping of names."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    BINARY = "binary and ternary"
    UNARY = "unary"
    INTEGER = "integer"
    REDUCTION = "reduction"
    SCAN = "scan"
    POOLING = "pooling"
    QUANTIZE = "quantize"
    CONVERT = "convert"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class SpecName:
    """One name; ``refused``: why it is not simulated ("" where it is, or is to be)."""

    name: str
    category: Category
    refused: str = ""


_NAMES: dict[Category, str] = {
    Category.MATMUL: "batchmatmul batchmatmulfp8 batchmatmulint8 batchmatmulint4",
    Category.CONVOLUTION: "conv2d conv2dfp8 conv2dint8 conv2dint4 depthwiseconv2dnative",
    Category.BINARY: (
        "add sub revsub mul realdiv maximum minimum equal notequal greaterequal lesserequal "
        "greaterthan lesserthan where3 fnms biasadd batchnormfwd layernormnorm"
    ),
    Category.UNARY: (
        "abs neg exp fastexp log sqrt rsqrt reciprocal tanh sigmoid fastsigmoid identity floor "
        "relufwd relu6fwd leakyrelufwd clip gelufwd silu mish softplus layernormscale"
    ),
    Category.INTEGER: "addi32toi32 muli32toi32 fp32toint32 int32tofp32",
    Category.REDUCTION: (
        "sum sumnonstick max maxnonstick min minnonstick mean meannonstick absmax absmaxnonstick "
        "prod prodnonstick exx2 exx2_zeromean quantscalepertoken quantscalepertokenfp8"
    ),
    Category.SCAN: "topkvalue topkindex maskbyindex keepbyindex",
    Category.POOLING: "maxpoolfwd avgpoolfwd avgpoolnmapfwd",
    Category.QUANTIZE: ("csqint8ch csqint8mb csqint8wt csqint4 csqint4wt qfp8ch qfp8mb qfp8wt"),
    Category.CONVERT: "dl16tofp32 fp32todl16 fp8todl16",
    Category.DATA: "ReStickifyOpHBM shuffle",
}

_UNDEFINED = "its mathematics is not public"
_REFUSED = {"maskbyindex": _UNDEFINED, "keepbyindex": _UNDEFINED}

SPEC_NAMES: dict[str, SpecName] = {
    name: SpecName(name, category, _REFUSED.get(name, ""))
    for category, names in _NAMES.items()
    for name in names.split()
}
"""All names, in the order of the specification's categories."""


class Status(StrEnum):
    """What becomes of a name of the specification."""

    IMPLEMENTED = "implemented"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Coverage:
    """A name of the specification with its status; ``detail``: definition, or why it is refused."""

    name: str
    category: Category
    status: Status
    detail: str


def coverage(
    names: Mapping[str, SpecName] = SPEC_NAMES, ops: Mapping[str, OpDefinition] = OPS
) -> tuple[Coverage, ...]:
    """One line per name of the specification, in its order."""
    return tuple(_cover(spec, ops) for spec in names.values())


def _cover(spec: SpecName, ops: Mapping[str, OpDefinition]) -> Coverage:
    row = find_op(spec.name, ops)
    if row is not None:
        return Coverage(spec.name, spec.category, Status.IMPLEMENTED, row.definition)
    if spec.refused:
        return Coverage(spec.name, spec.category, Status.REFUSED, spec.refused)
    return Coverage(spec.name, spec.category, Status.MISSING, "not simulated yet")


def count_line(lines: tuple[Coverage, ...]) -> str:
    """``N of N covered: I implemented, R refused by name``."""
    counts = {status: sum(line.status is status for line in lines) for status in Status}
    covered = len(lines) - counts[Status.MISSING]
    return (
        f"{covered} of {len(lines)} covered: {counts[Status.IMPLEMENTED]} implemented, "
        f"{counts[Status.REFUSED]} refused by name"
    )


def format_table(lines: tuple[Coverage, ...]) -> str:
    """The lines in columns, and the count."""
    width = max(len(line.name) for line in lines)
    room = max(len(line.category) for line in lines)
    status = max(len(kind) for kind in Status)
    rows = [
        f"{line.name:<{width}}  {line.category:<{room}}  {line.status:<{status}}  {line.detail}"
        for line in lines
    ]
    return "\n".join((*rows, count_line(lines)))
