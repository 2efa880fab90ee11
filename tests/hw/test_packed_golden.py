"""Packed and windowed operations: stored results, and torch or plain numpy on the same numbers.

`python -m tests.hw.test_packed_golden` writes the stored results anew; do so only when a reading
changes, and say which in the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from spyre.dtypes import decode_device, encode_device
from spyre.hw.plans.recode import _FORMATS
from spyre.mlir.operation import Operation, Padding, Window
from spyre.mlir.sdsc_builder import OperationSpec
from tests.hw.harness import Array
from tests.hw.logical import Bench, numbers
from tests.hw.packed_cases import FORMAT_OF, a_stick, b_stick, build, operand
from tests.hw.packed_strategies import OUTPUT_STICKS

GOLDEN = Path(__file__).parent / "golden" / "packed.npz"
RANGES = {"": (-8, 8), "fp8": (-8, 8), "int8": (-128, 127), "int4": (-8, 7)}
SCALES = {"": 0.25, "fp8": 0.25, "int8": 1.0, "int4": 1.0}


@dataclass(frozen=True)
class Case:
    """``inputs``: (dims, numbers) per input; ``dims`` of the output; ``expected`` numbers of it."""

    op: Operation
    inputs: tuple[tuple[tuple[str, ...], Array], ...]
    dims: tuple[str, ...]
    expected: Callable[[], Array]


def dl16(values: Array) -> Array:
    """Numbers as a DL16 tensor holds them."""
    codes = encode_device(np.asarray(values, np.float32), "SEN169_FP16")
    return decode_device(codes, "SEN169_FP16")


# --- matmuls ----------------------------------------------------------------------------------


def matmul_case(kind: str, split: bool) -> Case:
    """Padded: 100 of 128 k, the rest zeros; split: batch, rows, columns and k over 16 cores."""
    batch, rows, columns, depth = (2, 8, 128, 256) if split else (1, 6, 64, 100)
    extents = {"x": batch, "mb": rows, "out": columns, "in": 256 if split else 128}
    low, high = RANGES[kind]
    a = numbers((batch, rows, depth), low, high) * SCALES[kind]
    b = numbers((depth, columns), low, high, 7) * SCALES[kind]
    spec = OperationSpec(
        f"batchmatmul{kind}",
        extents,
        [
            operand(0, ("mb", "in", "x"), a_stick(kind, "in", "mb"), FORMAT_OF[kind]),
            operand(1, ("in", "out"), b_stick(kind, "in", "out"), FORMAT_OF[kind]),
        ],
        [operand(2, ("mb", "out", "x"), (("out", 64),))],
        {"x": 2, "mb": 2, "out": 2, "in": 2} if split else {},
        unit="pt",
    )
    inputs = ((("x", "mb", "in"), a), (("in", "out"), b))
    return Case(build(spec), inputs, ("x", "mb", "out"), lambda: dl16(a @ b))


# --- convolutions -----------------------------------------------------------------------------


def conv_windows(split: bool, size: int) -> tuple[dict[str, Window], dict[str, Padding], int]:
    """(windows, padding kinds, output positions): padded 3x3/2, or dilated with stored padding."""
    stride, dilation, pad = (1, 2, 2) if split else (2, 1, 1)
    total = size + 2 * pad
    out = (total - dilation * 2 - 1) // stride + 1
    windows = {
        dim: Window(place, total, stride, dilation, pad, pad)
        for dim, place in (("i", "ki"), ("j", "kj"))
    }
    kind = Padding.STORED_ZEROS if split else Padding.IMPLIED
    return windows, {"i": kind, "j": kind}, out


def torch_conv(x: Array, w: Array, window: Window, groups: int = 1) -> Array:
    torch = pytest.importorskip("torch")
    result = torch.nn.functional.conv2d(
        torch.from_numpy(np.ascontiguousarray(x, np.float64)),
        torch.from_numpy(np.ascontiguousarray(w, np.float64)),
        stride=window.stride,
        padding=window.pad_front,
        dilation=window.dilation,
        groups=groups,
    )
    return dl16(result.numpy())


def stored(x: Array, window: Window, kind: Padding) -> Array:
    """The input as memory holds it: with its zeros, or without."""
    pad = window.pad_front
    return np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))) if kind != Padding.IMPLIED else x


def conv_case(kind: str, split: bool) -> Case:
    size, images, made = 6, 2 if split else 1, 128 if split else 64
    depth = 128 if kind else 64
    windows, padding, out = conv_windows(split, size)
    low, high = RANGES[kind]
    x = numbers((images, depth, size, size), low, high) * SCALES[kind]
    w = numbers((made, depth, 3, 3), low, high, 5) * SCALES[kind]
    spec = OperationSpec(
        f"conv2d{kind}",
        {"mb": images, "i": out, "j": out, "out": made, "in": depth, "ki": 3, "kj": 3},
        [
            operand(0, ("j", "in", "i", "mb"), a_stick(kind, "in", "j"), FORMAT_OF[kind]),
            operand(1, ("in", "out", "kj", "ki"), b_stick(kind, "in", "out"), FORMAT_OF[kind]),
        ],
        [operand(2, ("j", "out", "i", "mb"), (("out", 64),))],
        {"mb": 2, "i": 3, "out": 2} if split else {},
        unit="pt",
    )
    op = build(spec, windows, padding)
    memory = stored(x, windows["i"], padding["i"])
    inputs = ((("mb", "in", "i", "j"), memory), (("out", "in", "ki", "kj"), w))
    return Case(op, inputs, ("mb", "out", "i", "j"), lambda: torch_conv(x, w, windows["i"]))


# --- pooling and depthwise --------------------------------------------------------------------


def window_case(name: str, split: bool) -> Case:
    size, images, channels = 6, 2, 128
    windows, padding, out = conv_windows(split, size)
    window = windows["i"]
    x = numbers((images, channels, size, size), -8, 8) / 4
    second = None
    extents = {"mb": images, "i": out, "j": out, "out": channels, "ki": 3, "kj": 3}
    dims = ("j", "out", "i", "mb")
    operands = [operand(0, dims, (("out", 64),))]
    if name == "avgpoolnmapfwd":
        second = (("i", "j"), numbers((out, out), 1, 4) / 8)
        scale = {"out": -2}
        operands.append(operand(1, ("out", "j", "i"), (("out", 64),), scale=scale))
    elif name == "depthwiseconv2dnative":
        second = (("out", "ki", "kj"), numbers((channels, 3, 3), -8, 8, 3) / 4)
        operands.append(operand(1, ("kj", "out", "ki"), (("out", 64),)))
    constants = {"nmap": 0x3800} if name == "avgpoolfwd" else {}
    spec = OperationSpec(
        name,
        extents,
        operands,
        [operand(2, dims, (("out", 64),))],
        {"i": 3, "out": 2, "mb": 2} if split else {},
        constants=constants,
    )
    memory = stored(x, window, padding["i"])
    if name == "maxpoolfwd" and split:
        memory = np.where(stored(np.ones_like(x), window, padding["i"]) == 1, memory, -16.0)
    inputs = ((("mb", "out", "i", "j"), memory), *([second] if second else []))
    factor = second[1] if second else np.zeros(0)
    return Case(
        build(spec, windows, padding),
        inputs,
        ("mb", "out", "i", "j"),
        lambda: torch_window(name, x, factor, window),
    )


def torch_window(name: str, x: Array, factor: Array, window: Window) -> Array:
    """As torch has it, or the sum of the window times a factor."""
    torch = pytest.importorskip("torch")
    if name == "maxpoolfwd":
        pooled = torch.nn.functional.max_pool2d(
            torch.nn.functional.pad(torch.from_numpy(x), [window.pad_front] * 4, value=-torch.inf),
            3,
            window.stride,
            dilation=window.dilation,
        )
        return dl16(pooled.numpy())
    if name == "depthwiseconv2dnative":
        return torch_conv(x, factor[:, None], window, groups=x.shape[1])
    ones = np.ones((x.shape[1], 1, 3, 3))
    total = torch_conv(x, ones, window, groups=x.shape[1])
    if name == "avgpoolnmapfwd":
        return dl16(total * factor)
    if window.dilation == 1:
        mean = torch.nn.functional.avg_pool2d(torch.from_numpy(x), 3, window.stride, 1).numpy()
        np.testing.assert_allclose(mean * 9, total, rtol=1e-6, atol=1e-6)
    return dl16(total / 8)


# --- recoding ---------------------------------------------------------------------------------


def recode_case(name: str, split: bool) -> Case:
    """Padded: 100 of 128 columns; split: rows and columns over 4 cores."""
    from spyre.hw.ops import OPS

    op_spec = OPS[name]
    rows, columns, width = (8, 256, 256) if split else (4, 100, 128)
    source_format, target_format = _FORMATS[op_spec.kernel_op]
    lanes = 32 if "32" in source_format else 64
    narrow = OUTPUT_STICKS.get(name, (("out", 128 if name == "fp8todl16" else lanes),))
    sticks = [(("out", lanes),), narrow]
    if name == "fp8todl16":
        sticks = [narrow, (("out", 64),)]
    values = [recode_numbers(name, (rows, columns), k) for k in range(op_spec.inputs)]
    spec = OperationSpec(
        name,
        {"mb": rows, "out": width},
        [operand(k, ("mb", "out"), sticks[0], source_format) for k in range(op_spec.inputs)],
        [operand(2, ("mb", "out"), sticks[1], target_format)],
        {"mb": 2, "out": 2} if split else {},
        constants={"scaleact": 0x4300, "shiftact": 0x3C00} if op_spec.constants else {},
    )
    inputs = tuple((("mb", "out"), v) for v in values)
    return Case(build(spec), inputs, ("mb", "out"), lambda: recoded(op_spec.kernel_op, values))


def recode_numbers(name: str, shape: tuple[int, int], k: int) -> Array:
    if "i32" in name or name == "int32tofp32":
        return numbers(shape, -(2**23), 2**23, k)
    if name == "fp32toint32":
        return numbers(shape, -(2**20), 2**20) / 64
    if name == "fp8todl16":
        return numbers(shape, -15, 15) * 2.0 ** numbers(shape, -6, 4, 3)
    return dl16(numbers(shape, -500, 500) * 2.0 ** numbers(shape, -9, 0, 3))


def recoded(kernel_op: str, values: list[Array]) -> Array:
    """Expected numbers, or codes of 8-bit floats as torch's cast makes them."""
    x = values[0]
    if kernel_op.startswith("quantize"):
        high = 127 if kernel_op == "quantize8" else 7
        return np.clip(np.rint(x.astype(np.float64) * 6 + 0.5), -high - 1, high)
    if kernel_op == "to_fp8":
        torch = pytest.importorskip("torch")
        clamped = torch.from_numpy(np.clip(x, -448, 448).astype(np.float32))
        return clamped.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    if kernel_op in ("add", "mul"):
        wide = x + values[1] if kernel_op == "add" else x * values[1]
        return wide.astype(np.int32)
    return np.trunc(x) if kernel_op == "truncate" else x


# --- all --------------------------------------------------------------------------------------

MAKERS: Mapping[str, Callable[[str, bool], Case]] = {
    **{f"batchmatmul{kind}": lambda n, s: matmul_case(n[11:], s) for kind in list(FORMAT_OF)[1:]},
    **{f"conv2d{kind}": lambda n, s: conv_case(n[6:], s) for kind in FORMAT_OF},
    **dict.fromkeys(
        ("maxpoolfwd", "avgpoolfwd", "avgpoolnmapfwd", "depthwiseconv2dnative"), window_case
    ),
    **dict.fromkeys(OUTPUT_STICKS, recode_case),
    **dict.fromkeys(
        ("fp8todl16", "addi32toi32", "muli32toi32", "fp32toint32", "int32tofp32"), recode_case
    ),
}


def run_case(name: str, split: bool, threads: int = 1) -> tuple[Bench, Case]:
    case = MAKERS[name](name, split)
    bench = Bench(case.op, threads)
    for k, (dims, values) in enumerate(case.inputs):
        bench.put(k, dims, values)
    bench.run()
    return bench, case


@pytest.mark.parametrize("split", [False, True], ids=["padded", "split"])
@pytest.mark.parametrize("name", MAKERS)
def test_results(name: str, split: bool):
    bench, case = run_case(name, split)
    expected = case.expected()
    found = bench.get(case.dims)[tuple(slice(0, n) for n in expected.shape)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("split", [False, True], ids=["padded", "split"])
@pytest.mark.parametrize("name", MAKERS)
def test_stored_results(name: str, split: bool):
    with np.load(GOLDEN) as golden:
        expected = golden[f"{name}/{'split' if split else 'padded'}"]
    for threads in (1, 2):
        bench, _ = run_case(name, split, threads)
        np.testing.assert_array_equal(bench.output_bytes(), expected)


def test_every_operation_of_the_new_families_has_stored_results():
    from spyre.hw.ops import OPS, Family

    families = (Family.CONTRACT, Family.RECODE, Family.WINDOWING)
    assert set(MAKERS) == {s.name for s in OPS.values() if s.family in families}


def write_golden() -> None:
    """Results of the twin, on memory filled as for the engine."""
    from spyre.hw.reference import literal_starts, run_reference
    from tests.hw.harness import engine

    arrays = {}
    for name in MAKERS:
        for split in (False, True):
            case = MAKERS[name](name, split)
            bench = Bench(case.op)
            for k, (dims, values) in enumerate(case.inputs):
                bench.put(k, dims, values)
            run_reference(case.op, engine("dl16", 1).memory, literal_starts(case.op))
            arrays[f"{name}/{'split' if split else 'padded'}"] = bench.output_bytes()
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    write_golden()
