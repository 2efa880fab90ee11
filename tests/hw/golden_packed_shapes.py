"""The cases of golden vectors over packed sticks, 32-bit integers and scratchpads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm

from msgspec.structs import replace

from spyre.mlir.builder.operations import OperandSpec, OperationSpec
from spyre.mlir.builder.recipes import pointwise, round_up
from spyre.mlir.operation.operation import Component
from tests.hw.golden_case import Case
from tests.hw.golden_places import RULES, Packed
from tests.hw.golden_shapes import DL16, FP32, at, case_name, code, logical
from tests.hw.harness import region

FP8, INT8, INT4, INT32 = "SEN143_FP8", "SENINT8", "SENINT4", "IEEE_INT32"
FORMATS = {"": DL16, "fp8": FP8, "int8": INT8, "int4": INT4}
"""Formats by the suffix of batchmatmul and conv2d."""
Stick = tuple[tuple[str, int], ...]
STICKS: Mapping[str, Callable[[str, str], Stick]] = {
    "ch": lambda a, o: ((a, 128),),
    "mb": lambda a, o: ((a, 8), (o, 2), (a, 8)),
    "wt": lambda a, o: ((o, 2), (a, 64)),
    "wt4": lambda a, o: ((o, 4), (a, 64)),
    "int4": lambda a, o: ((a, 16), (o, 2), (a, 8)),
}
"""stickSize_ of a packing, innermost first."""
QUANTIZE = {"scaleact": code(2.5), "shiftact": code(0.5)}


def stick_of(packed: Packed) -> Stick:
    return STICKS[packed.rule](packed.along, packed.across)


def contracted(kind: str, inner: str, row: str, columns: str) -> dict[int, Packed]:
    """Packings of A and B (operations reference §4)."""
    if kind == "int4":
        return {0: Packed("int4", inner, row), 1: Packed("wt4", columns, inner)}
    return {0: Packed("ch", inner), 1: Packed("wt", columns, inner)} if kind else {}


def packed_products(kind: str) -> tuple[Case, ...]:
    """Padded along every stick; batch (B lacks it), rows, columns and the sum over 24 cores; B in
    batches.
    """
    return (
        packed_product(kind, (5, 100, 70)),
        packed_product(kind, (8, 250, 100), 3, True, {"x": 3, "mb": 2, "out": 2, "in": 2}),
        packed_product(kind, (4, 140, 40), 2, False, {"mb": 2}),
    )


def packed_product(
    kind: str,
    shape: tuple[int, int, int],
    batch: int = 1,
    shared: bool = False,
    splits: Mapping[str, int] | None = None,
) -> Case:
    """[batch, rows, inner] times [batch (unless ``shared``), inner, columns]."""
    rows, inner, columns = shape
    packings = contracted(kind, "in", "mb", "out")
    data_format, outer = FORMATS[kind], () if shared else ("x",)
    a = OperandSpec(("mb", "in", "x"), stick_of(packings[0]), region(0), role="INPUT")
    b = OperandSpec(("in", "out", *outer), stick_of(packings[1]), region(1), role="KERNEL")
    target = OperandSpec(("mb", "out", "x"), (("out", 64),), region(2), role="OUTPUT")
    real = {"x": batch, "mb": rows, "out": columns, "in": inner}
    spec = OperationSpec(
        name=f"batchmatmul{kind}",
        extents={
            "x": batch,
            "mb": round_up(rows, 2 if kind == "int4" else 1),
            "out": round_up(columns, 64),
            "in": round_up(inner, 128),
        },
        inputs=[replace(tensor, data_format=data_format) for tensor in (a, b)],
        outputs=[target],
        splits=splits or {},
        core_order=("in",),
        data_format=data_format,
        unit="pt",
    )
    name = case_name((batch, rows, inner, columns), data_format)
    return Case(name, spec, real, padding=0.0, packings=packings)


def recoded(
    name: str,
    rule: str,
    target: str,
    source: str = DL16,
    constants: Mapping[str, int] | None = None,
) -> tuple[Case, ...]:
    """A packed output (or, of 8-bit floats, input): padded along both dims; over 12 cores."""
    side = 0 if source == FP8 else 1
    packed = Packed(rule, "out", "mb" if RULES[rule].across > 1 else "")
    cases = []
    for shape, splits in (((5, 100), {}), ((8, 3, 256), {"mb": 2, "x": 3, "out": 2})):
        spec = pointwise(name, shape, [at(0, (), source)], at(1, (), target), splits, constants)
        operands = [spec.inputs[0], spec.outputs[0]]
        operands[side] = replace(operands[side], stick=stick_of(packed))
        units = {"out": lcm(64, packed.elements["out"]), "mb": RULES[rule].across}
        extents = logical(shape)
        extents |= {dim: round_up(extents[dim], unit) for dim, unit in units.items()}
        spec = replace(
            spec, extents=extents, inputs=operands[:1], outputs=operands[1:], constant_format=DL16
        )
        cases.append(Case(case_name(shape, source), spec, logical(shape), packings={side: packed}))
    return tuple(cases)


def words(name: str, inputs: int, source: str, target: str) -> tuple[Case, ...]:
    """32-bit operands: padded; over 12 cores, with the last of two inputs broadcast."""
    cases = []
    for shape, splits in (((6, 100), {}), ((4, 3, 128), {"mb": 2, "x": 3, "out": 2})):
        operands = [at(k, (), source) for k in range(inputs)]
        if inputs > 1 and len(shape) == 3:
            operands[-1] = at(inputs - 1, (1,), source)
        spec = pointwise(name, shape, operands, at(inputs, (), target), splits)
        cases.append(Case(case_name(shape, source), spec, logical(shape)))
    return tuple(cases)


def shuffled() -> tuple[Case, ...]:
    """Shards of rows become shards of columns (padded), or of both in another order of cores."""
    plans = [
        ((6, 100), DL16, {"mb": 2}, {"out": 2}, 1),
        ((8, 256), DL16, {"mb": 4}, {"mb": 2, "out": 2}, 3),
        ((5, 40), FP32, {"mb": 5}, {"mb": 5}, 2),
    ]
    cases = []
    for shape, data_format, before, after, turn in plans:
        spec = pointwise("shuffle", shape, [at(0, (), data_format)], at(1, (), data_format), before)
        source = _shared(spec.inputs[0], spec, before, 0, 16384)
        target = _shared(spec.outputs[0], spec, after, turn, 1 << 20)
        spec = replace(spec, inputs=[source], outputs=[target])
        cases.append(Case(case_name(shape, data_format), spec, logical(shape)))
    return tuple(cases)


def _shared(
    tensor: OperandSpec, spec: OperationSpec, slices: Mapping[str, int], turn: int, base: int
) -> OperandSpec:
    """``tensor`` in LX, slice ``n`` of it with core ``n + turn``."""
    every = {dim: slices.get(dim, 1) for dim in spec.extents}
    count = every["mb"] * every["out"]
    places = [(core - turn) % count for core in range(count)]
    rows = tuple({"mb": n % every["mb"], "out": n // every["mb"]} for n in places)
    return replace(
        tensor, base=base, component=Component.LX, own_slices=every, own_core_slices=rows
    )
