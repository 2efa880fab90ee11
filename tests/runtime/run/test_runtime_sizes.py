"""Symbolic dims end to end: bundles of our own builder, run at several sizes, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import spyre
from spyre.errors import LaunchError, SpyreError
from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.builder.recipes import (
    HostOperand,
    identity,
    matmul,
    pointwise,
    reduction,
    restickify,
)
from spyre.mlir.bundle import write_bundle
from spyre.mlir.operation.operation import Component
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    ArgumentEntry,
    LaunchSpec,
    Role,
    SymbolKind,
)
from tests.mlir.sample_bundles import runtime_rows
from tests.runtime.launch_specs import write_launch_spec

ROWS, COLUMNS = 64, 256


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Multiples of 1/4 that DL16 holds exactly, sums of many of them included."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-8, 9, shape) / 4).astype(np.float16)


def spec(directory: Path, roles: list[Role], *shapes: tuple[int | str, ...]) -> None:
    """A launch spec without layouts: they follow from the largest shapes."""
    pairs = zip(roles, shapes, strict=True)
    arguments = tuple(ArgumentEntry(k, r, s, "float16") for k, (r, s) in enumerate(pairs))
    write_launch_spec(directory / LAUNCH_SPEC_FILE, LaunchSpec(1, "k", arguments))


BINARY = [Role.INPUT, Role.INPUT, Role.OUTPUT]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write_bundle(runtime_rows(), tmp_path)
    spec(tmp_path, BINARY, *[("s0", 128)] * 3)
    return tmp_path


@pytest.mark.parametrize("size", [16, 32, 48, 64])
def test_rows_split_over_cores(rows: Path, size: int):
    a, b = numbers(size, 128), numbers(size, 128, seed=1)
    result = spyre.run(rows, [a, b], values={"s0": size}, threads=1)
    np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))
    assert [r.shape for r in result.executes] == [f"mb {size}, out 128"] * 2
    assert result.counters.hbm_written_bytes == size * 256


def test_one_device_many_sizes(rows: Path):
    """A plan per size; nothing of a larger run is left in a smaller one's result."""
    device = spyre.Device(threads=1)
    for size in (64, 16, 48, 64, 32):
        a, b = numbers(size, 128, seed=size), numbers(size, 128, seed=1)
        result = spyre.run(rows, [a, b], values={"s0": size}, device=device)
        np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))


def test_without_launch_spec(tmp_path: Path):
    write_bundle(runtime_rows(), tmp_path)
    a, b = numbers(32, 128), numbers(32, 128, seed=1)
    result = spyre.run(tmp_path, [a, b], values={"s0": 32}, threads=1)
    np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))
    assert result.arguments[0].spec.layout.device_size == (2, 64, 64)


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("size", [128, 256])
def test_stick_dim_of_a_runtime_size(tmp_path: Path, size: int, derived: bool):
    builder = BundleBuilder()
    a, b = (builder.argument(ROWS * COLUMNS * 2) for _ in range(2))
    length = builder.size("s0", COLUMNS, 128)
    copy = identity((ROWS, COLUMNS), HostOperand(a.at()), HostOperand(b.at()), {"out": 2, "mb": 4})
    builder.add(replace(copy, sizes={"out": length}))
    write_bundle(builder.build(), tmp_path)
    if not derived:
        spec(tmp_path, [Role.INPUT, Role.OUTPUT], *[(ROWS, "s0")] * 2)
    a_ = numbers(ROWS, size)
    result = spyre.run(tmp_path, [a_], values={"s0": size}, threads=1)
    np.testing.assert_array_equal(result.outputs[0], a_)


def build(tmp_path: Path, make, sizes: dict[str, tuple[str, int, int]], nbytes: list[int]) -> None:
    builder = BundleBuilder()
    places = [HostOperand(builder.argument(n).at()) for n in nbytes]
    given = {dim: builder.size(*size) for dim, size in sizes.items()}
    made: OperationSpec = make(*places)
    builder.add(replace(made, sizes=given))
    write_bundle(builder.build(), tmp_path)


@pytest.mark.parametrize(("rows_", "inner"), [(32, 64), (64, 192), (96, 128)])
def test_matmul_of_two_runtime_sizes(tmp_path: Path, rows_: int, inner: int):
    build(
        tmp_path,
        lambda a, b, c: matmul(96, 192, 128, a, b, c, splits={"mb": 2, "out": 2}),
        {"mb": ("m", 96, 32), "in": ("k", 192, 64)},
        [96 * 192 * 2, 192 * 128 * 2, 96 * 128 * 2],
    )
    spec(tmp_path, BINARY, ("m", "k"), ("k", 128), ("m", 128))
    a, b = numbers(rows_, inner), numbers(inner, 128, seed=1)
    result = spyre.run(tmp_path, [a, b], values={"m": rows_, "k": inner}, threads=1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(result.outputs[0], exact, rtol=2**-9)


@pytest.mark.parametrize("size", [8, 40])
def test_reduction_over_a_runtime_size(tmp_path: Path, size: int):
    build(
        tmp_path,
        lambda x, y: reduction("sum", (40, 128), (0,), x, y, {"mb": 4}),
        {"mb": ("n", 40, 8)},
        [40 * 256, 256],
    )
    spec(tmp_path, [Role.INPUT, Role.OUTPUT], ("n", 128), (1, 128))
    x = numbers(size, 128)
    result = spyre.run(tmp_path, [x], values={"n": size}, threads=1)
    np.testing.assert_array_equal(result.outputs[0][0], x.astype(np.float64).sum(axis=0))


@pytest.mark.parametrize("size", [64, 128])
def test_restickify_of_a_runtime_size(tmp_path: Path, size: int):
    build(
        tmp_path,
        lambda x, y: restickify((128, 64), x, y),
        {"mb": ("n", 128, 64)},
        [128 * 128, 64 * 256],
    )
    spec(tmp_path, [Role.INPUT, Role.OUTPUT], ("n", 64), (64, "n"))
    x = numbers(size, 64)
    result = spyre.run(tmp_path, [x], values={"n": size}, threads=1)
    np.testing.assert_array_equal(result.outputs[0], x.T)


def test_layouts_given_for_the_maximum(tmp_path: Path):
    """A layout the compiler wrote counts two sticks, where the size of this launch has one."""
    build(
        tmp_path,
        lambda x, y: restickify((128, 64), x, y),
        {"mb": ("n", 128, 64)},
        [128 * 128, 64 * 256],
    )
    shapes = [((128, 64), ("n", 64)), ((64, 128), (64, "n"))]
    arguments = tuple(
        ArgumentEntry(k, role, shape, "float16", SpyreTensorLayout.from_host(m, "float16"))
        for k, (role, (m, shape)) in enumerate(zip(BINARY[1:], shapes, strict=True))
    )
    write_launch_spec(tmp_path / LAUNCH_SPEC_FILE, LaunchSpec(1, "k", arguments))
    for size in (64, 128):
        x = numbers(size, 64)
        result = spyre.run(tmp_path, [x], values={"n": size}, threads=1)
        np.testing.assert_array_equal(result.outputs[0], x.T)


def test_size_one(tmp_path: Path):
    """The layout has room for more than one row though the host tensor has one."""
    builder = BundleBuilder()
    a, b = (builder.argument(16 * 256) for _ in range(2))
    rows_ = builder.size("n", 16)
    neg = pointwise("neg", (16, 128), [HostOperand(a.at())], HostOperand(b.at()))
    builder.add(replace(neg, sizes={"mb": rows_}))
    write_bundle(builder.build(), tmp_path)
    spec(tmp_path, [Role.INPUT, Role.OUTPUT], *[("n", 128)] * 2)
    x = numbers(1, 128)
    for derived in (False, True):
        if derived:
            (tmp_path / LAUNCH_SPEC_FILE).unlink()
        result = spyre.run(tmp_path, [x], values={"n": 1}, threads=1)
        np.testing.assert_array_equal(result.outputs[0], -x)


def test_names_of_the_launch_spec(tmp_path: Path):
    """A size the launch spec calls otherwise than the bundle: both names take a value."""
    write_bundle(runtime_rows(), tmp_path)
    arguments = tuple(
        ArgumentEntry(k, role, ("s7", 128), "float16") for k, role in enumerate(BINARY)
    )
    kinds = (SymbolKind("dimension", pytorch_sym="s7", max_value=64, granularity=16),)
    write_launch_spec(
        tmp_path / LAUNCH_SPEC_FILE, LaunchSpec(1, "k", arguments, symbol_kinds=kinds)
    )
    a, b = numbers(48, 128), numbers(48, 128, seed=1)
    result = spyre.run(tmp_path, [a, b], values={"s0": 48, "s7": 48}, threads=1)
    np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))


BAD = {
    "none": ({}, "SPY366"),
    "zero": ({"s0": 0}, "SPY173"),
    "negative": ({"s0": -16}, "SPY173"),
    "no multiple": ({"s0": 24}, "SPY173"),
    "too large": ({"s0": 80}, "SPY173"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("derived", [False, True])
def test_bad_values(rows: Path, name: str, derived: bool):
    values, code = BAD[name]
    size = max(values.get("s0", 16), 1)
    if derived:
        (rows / LAUNCH_SPEC_FILE).unlink()
    with pytest.raises(SpyreError) as caught:
        spyre.run(rows, [numbers(size, 128)] * 2, values=values, threads=1)
    assert caught.value.code == code


def test_a_missing_size_is_named(tmp_path: Path):
    write_bundle(runtime_rows(), tmp_path)
    with pytest.raises(LaunchError) as caught:
        spyre.run(tmp_path, threads=1)
    assert "runtime size s0 has no value" in str(caught.value)
    assert "expected: a value for s0: a positive multiple of 16 up to 64" in str(caught.value)


def test_an_unannotated_size_is_checked_against_the_sdsc(rows: Path):
    """The bundle may take the size as a plain index; the SDSC still says what it may be."""
    module = rows / "bundle.mlir"
    text = module.read_text().replace(
        "!sdscbundle.input_arg<index, granularity=16, max_value=64>", "!sdscbundle.input_arg<index>"
    )
    module.write_text(text)
    with pytest.raises(LaunchError) as caught:
        spyre.run(rows, [numbers(24, 128)] * 2, values={"s0": 24}, threads=1)
    assert caught.value.code == "SPY372"
    assert "runtime size s0 of dim mb" in str(caught.value)


def test_lx_keeps_the_pitches_of_the_maximum(rows: Path):
    """§11: allocation at the maximum: a core's share in LX has room for 16 rows at any size."""
    bundle = spyre.load_bundle(rows)
    op = bundle.operations["sdsc_0.json"]
    assert op.outputs[0].component is Component.LX
    from spyre.mlir.operation.operation import footprint, with_sizes

    pitches = [footprint(o, o.outputs[0]).pitch_bytes for o in (op, with_sizes(op, {"mb": 16}))]
    assert pitches[0] == pitches[1] == {"mb": 128, "out": 16 * 128}
