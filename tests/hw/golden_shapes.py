"""The cases of golden vectors: per kind of operation two shapes at least, one with stick padding,
one split over several cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from spyre.mlir.builder.operations import OperandSpec, OperationSpec
from spyre.mlir.builder.recipes import (
    HostOperand,
    default_dims,
    identity,
    matmul,
    pointwise,
    reduction,
    restickify,
)
from spyre.mlir.operation.operation import Indirection
from tests.hw.golden_case import Case
from tests.hw.golden_inputs import TABLE_ROWS
from tests.hw.harness import region

DL16, FP32 = "SEN169_FP16", "IEEE_FP32"
KINDS = {
    DL16: "dl16",
    FP32: "fp32",
    "IEEE_INT32": "int32",
    "SEN143_FP8": "fp8",
    "SENINT8": "int8",
    "SENINT4": "int4",
}


def at(k: int, absent: tuple[int, ...] = (), data_format: str = DL16) -> HostOperand:
    return HostOperand(region(k), absent, data_format)


def code(value: float) -> int:
    """DL16 code of a number that DL16 holds exactly or that is rounded down to it."""
    mantissa, exponent = np.frexp(abs(value))
    bits = (int(exponent) + 30 << 9) + int((mantissa * 2 - 1) * 512) if value else 0
    return bits | (0x8000 if value < 0 else 0)


def elementwise(
    name: str,
    inputs: int = 1,
    constants: Mapping[str, int] | None = None,
    wide: bool = True,
    result: str = "",
) -> tuple[Case, ...]:
    """Padded; over 6 cores with the last input broadcast along a dim; float32 over 5 cores."""
    formats = [DL16, DL16, FP32] if wide else [DL16, DL16]
    shapes = [((6, 100), {}), ((4, 3, 128), {"mb": 2, "x": 3}), ((5, 40), {"mb": 5})]
    cases = []
    for (shape, splits), data_format in zip(shapes, formats, strict=False):
        operands = [at(k, (), data_format) for k in range(inputs)]
        if inputs > 1 and len(shape) == 3:
            operands[-1] = at(inputs - 1, (1,), data_format)
        target = at(inputs, (), result or data_format)
        spec = pointwise(name, shape, operands, target, splits, constants)
        spec = replace(spec, constant_format=DL16)
        cases.append(Case(case_name(shape, data_format), spec, logical(shape)))
    return tuple(cases)


def case_name(shape: Sequence[int], data_format: str = DL16, suffix: str = "") -> str:
    kind = KINDS[data_format]
    return "_".join(["x".join(map(str, shape)), kind, *([suffix] if suffix else [])])


def logical(shape: Sequence[int]) -> dict[str, int]:
    return dict(zip(default_dims(len(shape)), shape, strict=True))


def reduced(
    name: str,
    forms: str = "stick rows",
    constant: str = "",
    more: Mapping[str, int] | None = None,
    wide: bool = True,
    lanes: int = 1,
) -> tuple[Case, ...]:
    """Over the stick: padded, and split over 8 cores, also along it; over rows: both, float32."""
    plans = [
        ("stick", (6, 100), (1,), {}, DL16),
        ("stick", (4, 2, 256), (2,), {"mb": 2, "x": 2, "out": 2}, DL16),
        ("rows", (6, 100), (0,), {}, DL16),
        ("rows", (4, 8, 128), (1,), {"mb": 4, "out": 2}, DL16),
        ("rows", (8, 72), (0,), {"mb": 2}, FP32),
        ("stick", (3, 72), (1,), {"mb": 3}, FP32),
    ]
    cases = []
    for form, shape, axes, splits, data_format in plans:
        if form not in forms or (data_format == FP32 and not wide):
            continue
        count = int(np.prod([shape[axis] for axis in axes]))
        constants = {**({constant: code(1 / count)} if constant else {}), **(more or {})}
        operands = at(0, (), data_format), at(1, (), data_format)
        spec = reduction(name, shape, axes, *operands, splits, constants)
        if "samv-maskvalue" in spec.constants and data_format == FP32:
            masked = {**spec.constants, "samv-maskvalue": DL16_MASKS.get(name, 0)}
            spec = replace(spec, constants=masked)
        spec = replace(spec, constant_format=DL16)
        stored = {1: lanes} if form == "stick" else {}
        cases.append(Case(case_name(shape, data_format, form), spec, logical(shape), {}, stored))
    return tuple(cases)


def zero_mean(cases: Sequence[Case]) -> tuple[Case, ...]:
    return tuple(replace(case, name=f"{case.name}_zeromean") for case in cases)


DL16_MASKS = {"max": 0xFFFE, "min": 0x7FFE}


def layer_norm() -> tuple[Case, ...]:
    cases = []
    for shape, splits in (((6, 100), {}), ((4, 3, 128), {"mb": 2, "x": 3})):
        last = len(shape) - 1
        outer = tuple(range(last))
        inputs = [at(0), at(1, (last,)), at(2, (last,)), at(3, outer), at(4, outer)]
        spec = pointwise("layernormnorm", shape, inputs, at(5), splits)
        cases.append(Case(case_name(shape), spec, logical(shape), {}, {1: 1, 2: 1}))
    return tuple(cases)


def layer_norm_scale() -> tuple[Case, ...]:
    cases = []
    for shape, splits in (((6, 100), {}), ((4, 3, 128), {"mb": 2, "x": 3})):
        inputs = [at(0, (len(shape) - 1,))]
        spec = pointwise("layernormscale", shape, inputs, at(1), splits, {"eps": code(2.0**-16)})
        cases.append(Case(case_name(shape), spec, logical(shape), {}, {0: 2}))
    return tuple(cases)


def largest(name: str, result: str = DL16) -> tuple[Case, ...]:
    """The k largest along the first dim; positions also as int32."""
    cases = []
    plans = [(13, 100, 4, {}, DL16), (9, 256, 9, {"out": 4}, DL16), (7, 40, 2, {}, FP32)]
    for rows, columns, k, splits, data_format in plans:
        target_format = result if result != DL16 else data_format
        lanes = 64 if data_format == DL16 else 32
        padded = -(-columns // 64) * 64
        source = OperandSpec(
            ("mb", "out", "x"), (("out", lanes),), region(0), {"x": -1}, data_format
        )
        stick = 64 if target_format == DL16 else 32
        target = OperandSpec(
            ("x", "out", "mb"), (("out", stick),), region(1), {"mb": -1}, target_format
        )
        extents = {"mb": rows, "x": k, "out": padded}
        spec = OperationSpec(name, extents, [source], [target], splits, data_format=data_format)
        real = {"mb": rows, "x": k, "out": columns}
        suffix = f"{k}" if target_format == data_format else f"{k}_int32"
        cases.append(Case(case_name((rows, columns), data_format, suffix), spec, real))
    return tuple(cases)


def products() -> tuple[Case, ...]:
    """Padding holds zero here: it is the producer's duty."""
    plans = [
        (5, 100, 70, (), {}),
        (8, 128, 64, (3,), {"x": 3, "in": 2}),
        (6, 64, 128, (), {"mb": 3}),
    ]
    cases = []
    for rows, inner, columns, batch, splits in plans:
        spec = matmul(rows, inner, columns, at(0), at(1), at(2), batch, splits)
        real = {"mb": rows, "out": columns, "in": inner}
        real |= dict(zip([d for d in spec.extents if d not in real], batch, strict=True))
        name = case_name((*batch, rows, inner, columns))
        cases.append(Case(name, spec, real, padding=0.0))
    return tuple(cases)


def copies() -> tuple[Case, ...]:
    """A copy, a broadcast over 6 cores, float32, and rows picked by an index."""
    shapes = [(6, 100), (4, 3, 128), (5, 40)]
    plain = Case("6x100_dl16", identity(shapes[0], at(0), at(1)), logical(shapes[0]))
    splits = {"mb": 2, "x": 3}
    wider = Case(
        "4x3x128_dl16_broadcast",
        identity(shapes[1], at(0, (1,)), at(1), splits),
        logical(shapes[1]),
    )
    words = identity(shapes[2], at(0, (), FP32), at(1, (), FP32), {"mb": 5})
    return (plain, wider, Case("5x40_fp32", words, logical(shapes[2])), gather())


def gather() -> Case:
    table = OperandSpec(
        ("out", "mb"), (("out", 64),), region(0), role="V", max_dim_sizes={"mb": 1},
        indirection=Indirection.VALUE,
    )  # fmt: skip
    index = OperandSpec(
        ("mb",), (("mb", 32),), region(1), data_format="SENUINT32", role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )  # fmt: skip
    target = OperandSpec(("mb", "out"), (("out", 64),), region(2), role="O")
    spec = OperationSpec(
        "identity", {"mb": 32, "out": 128}, [table], [target], index_inputs=[index]
    )
    sizes = {0: {"mb": TABLE_ROWS}}
    return Case("32x128_dl16_gather", spec, {"mb": 32, "out": 128}, sizes, padding=0.0)


def conversions(name: str) -> tuple[Case, ...]:
    """In place of the elements, and permuted by the arrangement of the 32-bit or 16-bit side."""
    source, target = (DL16, FP32) if name == "dl16tofp32" else (FP32, DL16)
    tag = ("STANDARD", "DL16_TO_FP32") if source == DL16 else ("STANDARD", "FP32_TO_DL16")
    cases = []
    plans = [((6, 100), {}, ()), ((4, 3, 128), {"mb": 2, "x": 3}, ()), ((5, 192), {"mb": 5}, tag)]
    for shape, splits, tags in plans:
        spec = pointwise(name, shape, [at(0, (), source)], at(1, (), target), splits)
        suffix = "permuted" if tags else ""
        named = case_name(shape, source, suffix)
        cases.append(Case(named, spec, logical(shape), tags=tags))
    return tuple(cases)


def restickified() -> tuple[Case, ...]:
    cases = []
    for shape, splits in (((70, 100), {}), ((4, 128, 192), {"mb": 4, "out": 3})):
        spec = restickify(shape, at(0), at(1), splits)
        cases.append(Case(case_name(shape), spec, logical(shape)))
    return tuple(cases)
