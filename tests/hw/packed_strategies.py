"""Random packed matmuls, convolutions, windowed and recoding operations, all legal."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.operation.operation import Operation, Padding, Window
from tests.hw.packed_cases import FORMAT_OF, a_stick, b_stick, build, operand

STORED = (Padding.STORED_ZEROS, Padding.FULL_SPAN, Padding.FULL_SPAN_UNNEEDED)
IMPLIED = (None, Padding.NONE, Padding.IMPLIED)


@st.composite
def packed_matmuls(draw: st.DrawFn, kind: str) -> Operation:
    """batchmatmul of a kind: batch dims (B may lack them), rows, any split, HBM or LX."""
    row_unit = 2 if kind == "int4" else 1
    extents = {
        "x": draw(st.sampled_from([1, 2, 3])),
        "mb": row_unit * draw(st.sampled_from([1, 3, 7, 16])),
        "out": 64 * draw(st.integers(1, 5)),
        "in": 128 * draw(st.integers(1, 3)),
    }
    splits = {
        "x": draw(st.sampled_from([1, extents["x"]])),
        "mb": draw(st.sampled_from([1, extents["mb"] // row_unit])),
        "out": draw(st.sampled_from([1, extents["out"] // 64])),
        "in": draw(st.sampled_from([1, extents["in"] // 128])),
    }
    splits = limited(splits, 32)
    order = draw(st.permutations(list(extents)))
    shared = draw(st.booleans())
    lx_b = draw(st.booleans()) and splits["in"] == 1
    dims = {
        "a": draw(st.permutations(["x", "mb", "in"])),
        "b": draw(st.permutations(["out", "in", *([] if shared else ["x"])])),
        "c": draw(st.permutations(["x", "mb", "out"])),
    }
    formats = FORMAT_OF[kind]
    if kind == "fp8":
        formats = draw(st.sampled_from(["SEN143_FP8", "SEN152_FP8"]))
    spec = OperationSpec(
        f"batchmatmul{kind}",
        {dim: extents[dim] for dim in order},
        [
            operand(0, tuple(dims["a"]), a_stick(kind, "in", "mb"), formats),
            operand(1, tuple(dims["b"]), b_stick(kind, "in", "out"), formats, lx_b),
        ],
        [operand(2, tuple(dims["c"]), (("out", 64),))],
        splits,
        core_order=draw(st.permutations(order)),
        unit="pt",
    )
    return build(spec)


def limited(splits: dict[str, int], most: int) -> dict[str, int]:
    """Splits given up, last first, until they need at most ``most`` cores."""
    result = dict(splits)
    for dim in reversed(list(splits)):
        if prod(result.values()) > most:
            result[dim] = 1
    return result


@st.composite
def windows_of(draw: st.DrawFn, window_dim: str, positions: int, places: int) -> Window:
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    front, back = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    reach = (positions - 1) * stride + (places - 1) * dilation + 1
    total = max(reach + draw(st.integers(0, 2)), front + back + 1)
    return Window(window_dim, total, stride, dilation, front, back)


@st.composite
def spatial(draw: st.DrawFn, two: bool = True):
    """Extents, splits, windows and padding of i, j and their window dims."""
    extents, splits, windows, padding = {}, {}, {}, {}
    for dim, place in (("i", "ki"), ("j", "kj"))[: 2 if two else 1]:
        positions, places = draw(st.integers(1, 6)), draw(st.integers(1, 3))
        extents |= {dim: positions, place: places}
        divisors = [n for n in (1, 2, 3, 5) if positions % n == 0]
        splits |= {dim: draw(st.sampled_from(divisors)), place: 1}
        windows[dim] = draw(windows_of(place, positions, places))
        kind = draw(st.sampled_from([*STORED, *IMPLIED]))
        if kind is not None:
            padding[dim] = kind
    return extents, splits, windows, padding


def lx_allowed(splits, windows, padding) -> bool:
    """A core's own input must hold the front padding of a divided dim."""
    return all(
        splits[d] == 1 or not w.pad_front or padding.get(d) in STORED for d, w in windows.items()
    )


@st.composite
def convolutions(draw: st.DrawFn, kind: str) -> Operation:
    """conv2d of a kind: stride, dilation, padding stored or not, any split, HBM or LX."""
    extents, splits, windows, padding = draw(spatial())
    unit = 128 if kind else 64
    extents |= {
        "mb": draw(st.integers(1, 2)),
        "out": 64 * draw(st.integers(1, 2)),
        "in": unit * draw(st.integers(1, 2)),
    }
    splits |= {
        "mb": draw(st.sampled_from([1, extents["mb"]])),
        "out": draw(st.sampled_from([1, extents["out"] // 64])),
        "in": draw(st.sampled_from([1, extents["in"] // unit])),
    }
    if kind == "int4" and extents["j"] // splits["j"] * windows["j"].stride % 2:
        splits["j"] = 1
    splits = limited(splits, 32)
    order = draw(st.permutations(list(extents)))
    dims_x = tuple(draw(st.permutations(["mb", "i", "j", "in"])))
    dims_w = tuple(draw(st.permutations(["out", "in", "ki", "kj"])))
    dims_y = tuple(draw(st.permutations(["mb", "i", "j", "out"])))
    single = splits["in"] == 1
    lx_x = draw(st.booleans()) and single and lx_allowed(splits, windows, padding)
    lx_w = draw(st.booleans()) and single
    spec = OperationSpec(
        f"conv2d{kind}",
        {dim: extents[dim] for dim in order},
        [
            operand(0, dims_x, a_stick(kind, "in", "j"), FORMAT_OF[kind], lx_x),
            operand(1, dims_w, b_stick(kind, "in", "out"), FORMAT_OF[kind], lx_w),
        ],
        [operand(2, dims_y, (("out", 64),))],
        splits,
        core_order=draw(st.permutations(order)),
        unit="pt",
    )
    return build(spec, windows, padding)


@st.composite
def windowings(draw: st.DrawFn, name: str, inputs: int, constants: dict[str, int]) -> Operation:
    """Pooling or depthwise convolution over one or two windowed dims."""
    wide = draw(st.booleans())
    data_format, lanes = ("IEEE_FP32", 32) if wide else ("SEN169_FP16", 64)
    extents, splits, windows, padding = draw(spatial(draw(st.booleans())))
    places = [w.window_dim for w in windows.values()]
    extents |= {"mb": draw(st.integers(1, 3)), "out": lanes * draw(st.integers(1, 3))}
    splits |= {"mb": 1, "out": draw(st.sampled_from([1, extents["out"] // lanes]))}
    splits = limited(splits, 32)
    order = draw(st.permutations(list(extents)))
    kept = [d for d in order if d not in places]
    stick = (("out", lanes),)
    lx = draw(st.booleans()) and lx_allowed(splits, windows, padding)
    operands = [operand(0, tuple(draw(st.permutations(kept))), stick, data_format, lx)]
    if inputs == 2:
        if name.startswith("depthwise"):
            dims, scale = draw(st.permutations(["out", *places])), {}
        else:
            dims = draw(st.permutations(kept))
            absent = draw(st.sets(st.sampled_from(dims)))
            scale = {d: -2 if d == "out" else -1 for d in absent}
        operands.append(operand(1, tuple(dims), stick, data_format, draw(st.booleans()), scale))
    out = operand(inputs, tuple(draw(st.permutations(kept))), stick, data_format)
    spec = OperationSpec(
        name, {d: extents[d] for d in order}, operands, [out], splits, constants=constants,
        core_order=draw(st.permutations(order)), data_format=data_format,
        constant_format="SEN169_FP16",
    )  # fmt: skip
    return build(spec, windows, padding)


OUTPUT_STICKS = {
    "qfp8ch": (("out", 128),),
    "csqint8ch": (("out", 128),),
    "qfp8mb": (("out", 8), ("mb", 2), ("out", 8)),
    "csqint8mb": (("out", 8), ("mb", 2), ("out", 8)),
    "qfp8wt": (("mb", 2), ("out", 64)),
    "csqint8wt": (("mb", 2), ("out", 64)),
    "csqint4": (("out", 16), ("mb", 2), ("out", 8)),
    "csqint4wt": (("mb", 4), ("out", 64)),
}


@st.composite
def recodings(
    draw: st.DrawFn, name: str, formats: tuple[str, str], inputs: int, constants: dict[str, int]
) -> Operation:
    """Quantising and conversions; further inputs of int32 operations may lack dims."""
    lanes = 32 if "32" in formats[0] else 64
    narrow = OUTPUT_STICKS.get(name, (("out", 128 if name == "fp8todl16" else lanes),))
    pair = dict(narrow).get("mb", 1)
    unit = max(lanes, prod(n for d, n in narrow if d == "out"))
    extents = {
        "mb": pair * draw(st.integers(1, 6)),
        "x": draw(st.integers(1, 4)),
        "out": unit * draw(st.integers(1, 3)),
    }
    splits = limited(
        {
            "mb": draw(st.sampled_from([1, extents["mb"] // pair])),
            "x": draw(st.sampled_from([1, extents["x"]])),
            "out": draw(st.sampled_from([1, extents["out"] // unit])),
        },
        32,
    )
    order = draw(st.permutations(list(extents)))
    source_stick = narrow if name == "fp8todl16" else (("out", lanes),)
    target_stick = (("out", 64),) if name == "fp8todl16" else narrow
    operands = []
    for k in range(inputs):
        dims = tuple(draw(st.permutations(order)))
        absent = draw(st.sets(st.sampled_from(order))) if k else set()
        scale = {d: -2 if d == "out" else -1 for d in absent}
        operands.append(operand(k, dims, source_stick, formats[0], draw(st.booleans()), scale))
    dims = tuple(draw(st.permutations(order)))
    out = operand(inputs, dims, target_stick, formats[1], draw(st.booleans()))
    spec = OperationSpec(
        name, {d: extents[d] for d in order}, operands, [out], splits, constants=constants,
        core_order=draw(st.permutations(order)), data_format=formats[0],
        constant_format="SEN169_FP16",
    )  # fmt: skip
    return build(spec)
