"""`python -m tests.hw.bits [--write]`: hashes of operations' results over all their inputs.

They were made on one processor and hold on every other one, with kernels compiled for any
instructions (NUMBA_CPU_NAME, NUMBA_CPU_FEATURES). Elementwise operations run over every 16-bit code
in both number formats, and in float32 over 8,192 patterns of each sign and exponent; other inputs
of an operation are the same ones in another order. Other operations run over the shapes of the
golden vectors and some larger ones, with numbers whose sums depend on the order of adding.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from spyre.dtypes import decode_dl16
from spyre.hw.ops.elementwise import Family, OpDefinition
from spyre.hw.ops.table import OPS
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction
from tests.hw.golden_cases import GOLDEN, VECTORS
from tests.hw.harness import allocations_of, engine, link, region, windows
from tests.hw.test_golden_ops import run_case

HASHES = VECTORS.parent / "bits.toml"
DL16, FP32 = "SEN169_FP16", "IEEE_FP32"
MODES = ("dl16", "ieee")
PARTNERS = 8
"""Other operands every 16-bit code meets."""
CONSTANTS = {
    **{"eps": 0x1C9F, "clipMin": 0xBE00, "clipMax": 0x3F00, "softplusBeta": 0x3F00},
    **{"softplusThresh": 0x4680, "scaling_factor": 0x37FF, "exx2scale": 0x37FF, "mulConst": 0x37FF},
}
"""DL16 codes."""
Array = np.ndarray[Any, Any]
Computation = tuple[str, Callable[[], str]]
"""A name, and the function that returns the hash."""


@cache
def every_code() -> Array:
    return np.arange(1 << 16).astype(np.uint16)


@cache
def every_binade() -> Array:
    """Bits of four million float32: both ends of every binade, zeros, infinities, NaN."""
    fractions = np.random.default_rng(1).integers(0, 1 << 23, 8192)
    fractions[:4] = 0, 1, (1 << 23) - 1, 1 << 22
    return ((np.arange(512)[:, None] << 23) | fractions).ravel().astype(np.uint32)


def digest(codes: Array, data_format: str, mode: str) -> str:
    """Hash result codes; all NaNs count as equal (DL16 has none)."""
    if data_format == FP32:
        codes = np.where(np.isnan(codes.view(np.float32)), np.uint32(0x7FC00000), codes)
    elif mode == "ieee" and data_format == DL16:
        codes = np.where((codes & 0x7FFF) > 0x7C00, np.uint16(0x7E00), codes)
    return hashlib.sha256(np.ascontiguousarray(codes).tobytes()).hexdigest()[:16]


def run(spec: OperationSpec, inputs: list[Array], mode: str) -> Array:
    """Result codes of an operation over operands that fill their memory."""
    op, device = build_operation(spec), engine(mode)
    found = windows(op)
    for window, codes in zip(found, inputs, strict=False):
        held = np.resize(codes, (window.high - window.low) // codes.itemsize)
        device.memory.write(window.low, held.view(np.uint8))
    device.executor.run(link(device, [op], allocations_of(found)))
    last = found[-1]
    return device.memory.read(last.low, last.high - last.low).view(inputs[0].dtype)


def operand(k: int, data_format: str, absent: tuple[int, ...] = ()) -> HostOperand:
    return HostOperand(region(k), absent, data_format)


def constants(spec: OpDefinition, data_format: str) -> dict[str, int]:
    codes = {name: CONSTANTS[name] for name in spec.constants}
    if data_format == DL16:
        return codes
    values = {n: decode_dl16(np.array([c], np.uint16)).view(np.uint32)[0] for n, c in codes.items()}
    return {name: int(bits) for name, bits in values.items()}


def elementwise(spec: OpDefinition, data_format: str, mode: str) -> str:
    rng, wide = np.random.default_rng(2), data_format == FP32
    codes = every_binade() if wide else every_code()
    if spec.inputs > 1 and not wide:
        codes = np.tile(codes, PARTNERS)
    lanes = 32 if wide else 64
    shape = (codes.size // lanes, lanes)
    others = [rng.permutation(codes) for _ in range(spec.inputs - 1)]
    operands = [operand(k, data_format) for k in range(spec.inputs + 1)]
    if spec.kernel_op == "layernormscale":  # two lanes of each stick are read
        operands[0] = operand(0, data_format, (1,))
    given = constants(spec, data_format)
    described = pointwise(spec.name, shape, operands[:-1], operands[-1], {"mb": 4}, given)
    return digest(run(described, [codes, *others], mode), data_format, mode)


def numbers(rng: np.random.Generator, count: int, data_format: str) -> Array:
    """Codes of numbers of many magnitudes, whose sums depend on the order of adding."""
    values = rng.standard_normal(count) * np.exp2(rng.uniform(-6, 6, count))
    if data_format == FP32:
        return values.astype(np.float32).view(np.uint32)
    if data_format == DL16:
        return rng.integers(0x3000, 0x4800, count).astype(np.uint16) | (
            rng.integers(0, 2, count) << 15
        ).astype(np.uint16)
    assert data_format == "SEN143_FP8"
    codes = rng.integers(0, 256, count).astype(np.uint8)
    return np.where(codes & 0x7F == 0x7F, np.uint8(0), codes)


FLOATS = (DL16, FP32, "SEN143_FP8")


def golden(name: str, mode: str) -> str:
    """The shapes of the golden vectors; integers, indices and conditions are theirs."""
    rng, hashes = np.random.default_rng(3), []
    with np.load(VECTORS / f"{name}.npz") as stored, tempfile.TemporaryDirectory() as place:
        for case in GOLDEN[name].cases:
            inputs = [stored[f"{case.name}.in{k}"] for k in range(len(case.operands) - 1)]
            for k, (codes, tensor) in enumerate(zip(inputs, case.operands, strict=False)):
                if tensor.data_format in FLOATS:
                    drawn = numbers(rng, codes.size, tensor.data_format)
                    inputs[k] = drawn.reshape(codes.shape).astype(codes.dtype)
            result = run_case(case, inputs, Path(place), 1, mode)
            hashes.append(digest(result, case.operands[-1].data_format, mode))
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]


def larger() -> Iterator[Computation]:
    """Sums over thousands of numbers, in every mode of adding, whole and divided over cores."""
    for name in ("sum", "mean", "prod", "exx2"):
        for data_format in OPS[name].formats:
            for mode in CHUNKED_TOO if data_format == DL16 else ("dl16",):
                for axis, split in ((1, "out"), (0, "mb")) if name != "exx2" else ((1, "mb"),):
                    title = f"{name} {KIND[data_format]} {mode} axis {axis}"
                    yield title, partial(reduced, OPS[name], data_format, mode, axis, split)
    for mode in CHUNKED_TOO:
        yield f"batchmatmul {mode} 70x1024x192", partial(multiplied, mode)


CHUNKED_TOO = (*MODES, "dl16-chunk")
KIND = {DL16: "16-bit", FP32: "float32"}


def reduced(spec: OpDefinition, data_format: str, mode: str, axis: int, split: str) -> str:
    shape = (96, 3072)
    rng = np.random.default_rng(4)
    source, target = operand(0, data_format), operand(1, data_format)
    codes = numbers(rng, int(np.prod(shape)), data_format)
    given = constants(spec, data_format)
    hashes = []
    for splits in ({}, {split: 3}):
        described = reduction(spec.name, shape, (axis,), source, target, splits, given)
        hashes.append(digest(run(described, [codes], mode), data_format, mode))
    return " ".join(hashes)


def multiplied(mode: str) -> str:
    rng = np.random.default_rng(5)
    rows, inner, columns = 70, 1024, 192
    left, right, target = (operand(k, DL16) for k in range(3))
    inputs = [numbers(rng, n, DL16) for n in (rows * inner, inner * columns)]
    hashes = []
    for splits in ({}, {"out": 3}, {"in": 4}):
        described = matmul(rows, inner, columns, left, right, target, splits=splits)
        hashes.append(digest(run(described, inputs, mode), DL16, mode))
    return " ".join(hashes)


def functions() -> Iterator[Computation]:
    """PyTorch's float32 functions on the card, which are made of several operations."""
    from tests.torch_backend.eager.test_arithmetic import FLOAT32_FUNCTIONS

    for name, (function, *_) in FLOAT32_FUNCTIONS.items():
        yield f"torch {name} float32", partial(of_function, function)


def of_function(function: Callable[[Any], Any]) -> str:
    import torch

    x = torch.from_numpy(every_binade().view(np.float32).copy()).to("spyre")
    return digest(function(x).cpu().numpy().view(np.uint32), FP32, "dl16")


def computations() -> Iterator[Computation]:
    """Everything that is hashed, by name."""
    for name, spec in OPS.items():
        if spec.family is not Family.ELEMENTWISE:
            for mode in MODES:
                yield f"{name} {mode}", partial(golden, name, mode)
            continue
        for data_format in spec.formats:
            for mode in MODES if data_format == DL16 else ("dl16",):
                kind = mode if data_format == DL16 else "float32"
                yield f"{name} {kind}", partial(elementwise, spec, data_format, mode)
    yield from larger()
    yield from functions()


def kept() -> dict[str, str]:
    """The hashes in the repository."""
    return tomllib.loads(HASHES.read_text(encoding="utf-8"))


def main() -> None:
    lines = [f'"{name}" = "{compute()}"' for name, compute in computations()]
    text = "\n".join(["# python -m tests.hw.bits --write", *lines, ""])
    if "--write" in sys.argv[1:]:
        HASHES.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
