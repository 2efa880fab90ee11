"""topkvalue and topkindex against numpy, value formats and ties included."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.workloads import link_operations
from spyre.dtypes import decode_dl16, encode_dl16
from spyre.errors import SdscError, UnsupportedError
from spyre.hw.device.device import Device
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.operation.operation import Component
from tests.hw.harness import Trial, compare
from tests.hw.kernels.test_data_movement import any_bits

ROWS, COLUMNS, K = 13, 128, 4


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(threads=1)


def _spec(name: str, data_format: str = "SEN169_FP16", k: int = K, rows: int = ROWS, **extra):
    """Input [rows, 128], stick 128; output [k, 128]: dims mb (reduced), x (k), out (stick)."""
    lanes = 32 if data_format == "IEEE_INT32" else 64
    source = OperandSpec(("mb", "out", "x"), (("out", 64),), 0, {"x": -1})
    target = OperandSpec(
        ("x", "out", "mb"), (("out", lanes),), REGION_BYTES, {"mb": -1}, data_format
    )
    extents = {"mb": rows, "x": k, "out": COLUMNS}
    return OperationSpec(name, extents, [source], [target], **extra)


def _fill(device: Device, values: np.ndarray) -> np.ndarray:
    codes = encode_dl16(values.astype(np.float32))
    sticks = codes.reshape(values.shape[0], 2, 64).transpose(1, 0, 2)
    device.memory.write(0, np.ascontiguousarray(sticks).view(np.uint8).ravel())
    return decode_dl16(codes)


def _expected(values: np.ndarray) -> np.ndarray:
    """Positions of the K largest per column, lowest first among equals."""
    return np.argsort(-values, axis=0, kind="stable")[:K]


def test_values_and_positions(device: Device) -> None:
    rng = np.random.default_rng(3)
    values = _fill(device, rng.integers(-5, 5, (ROWS, COLUMNS)))
    order = _expected(values)
    device.executor.run(link_operations(device, [_spec("topkvalue")]))
    raw = device.memory.read(REGION_BYTES, 2 * K * 128).view(np.uint16)
    found = decode_dl16(raw.reshape(2, K, 64).transpose(1, 0, 2).reshape(K, COLUMNS))
    np.testing.assert_array_equal(found, np.take_along_axis(values, order, 0))
    device.executor.run(link_operations(device, [_spec("topkindex", "IEEE_INT32")]))
    raw = device.memory.read(REGION_BYTES, 4 * K * 128).view(np.int32)
    positions = raw.reshape(4, K, 32).transpose(1, 0, 2).reshape(K, COLUMNS)
    np.testing.assert_array_equal(positions, order)


@pytest.mark.parametrize("name", ["topkvalue", "topkindex"])
@pytest.mark.parametrize(("k", "splits"), [(4, {"x": 4}), (6, {"x": 2, "out": 2}), (3, {"x": 3})])
@pytest.mark.parametrize("local", [False, True])
def test_k_split_over_cores(name: str, k: int, splits: dict[str, int], local: bool) -> None:
    """Each core writes the ranks of its slice, into one tensor or into its own scratchpad."""
    spec = _spec(name, k=k, splits=splits)
    if local:
        target = replace(spec.outputs[0], component=Component.LX, base=0)
        spec = replace(spec, outputs=[target])
    op = build_operation(spec)
    compare(op, Trial([lambda rng, n: rng.integers(-4, 4, n).astype(np.float32), any_bits]))


def test_positions_as_numbers(device: Device) -> None:
    values = _fill(device, np.random.default_rng(4).standard_normal((ROWS, COLUMNS)))
    device.executor.run(link_operations(device, [_spec("topkindex")]))
    raw = device.memory.read(REGION_BYTES, 2 * K * 128).view(np.uint16)
    found = decode_dl16(raw.reshape(2, K, 64).transpose(1, 0, 2).reshape(K, COLUMNS))
    np.testing.assert_array_equal(found, _expected(values))


def test_infinities_are_selected(device: Device) -> None:
    values = np.full((ROWS, COLUMNS), -np.inf)
    values[3] = np.inf
    values = _fill(device, values)
    device.executor.run(link_operations(device, [_spec("topkindex", "IEEE_INT32")]))
    raw = device.memory.read(REGION_BYTES, 4 * K * 128).view(np.int32)
    positions = raw.reshape(4, K, 32).transpose(1, 0, 2).reshape(K, COLUMNS)
    np.testing.assert_array_equal(positions[:, 0], [3, 0, 1, 2])


def test_structure_is_checked(device: Device) -> None:
    with pytest.raises(SdscError, match="SPY286]: topkvalue: k exceeds the extent"):
        link_operations(device, [_spec("topkvalue", k=ROWS + 1)])
    with pytest.raises(UnsupportedError, match="SPY531]: topkvalue: dim 'mb' split over cores"):
        link_operations(device, [_spec("topkvalue", rows=14, splits={"mb": 2})])
