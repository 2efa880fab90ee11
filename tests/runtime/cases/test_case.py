"""Cases: two kernels that share a buffer, replayed; and what is wrong with damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spyre.errors import LaunchError
from spyre.hw.device.device import Device
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import write_bundle
from spyre.runtime.cases import case_directory, read_case
from spyre.runtime.run.session import run
from tests.runtime.bundles import NBYTES, SHAPE


def unary_kernel(directory: Path, op: str) -> None:
    builder = BundleBuilder()
    x, y = (HostOperand(builder.argument(NBYTES).at()) for _ in range(2))
    builder.add(pointwise(op, SHAPE, [x], y, {"mb": 4}))
    write_bundle(builder.build(), directory)


def buffer(kind: str, value: str | None = None) -> dict[str, Any]:
    layout = SpyreTensorLayout.from_host(SHAPE, "float16")
    return {
        "kind": kind,
        "nbytes": NBYTES,
        "dtype": "float16",
        "shape": SHAPE,
        "stride": contiguous_strides(SHAPE),
        "dma_sizes": SHAPE,
        "dma_strides": contiguous_strides(SHAPE),
        "layout": {
            "device_size": layout.device_size,
            "stride_map": layout.stride_map,
            "device_dtype": layout.device_dtype,
        },
        "value": value,
    }


def write_case(directory: Path, expected_shift: float = 0.0) -> Path:
    """y = |-x|, the two halves as kernels of their own."""
    unary_kernel(directory / "k0", "neg")
    unary_kernel(directory / "k1", "abs")
    x = np.random.default_rng(0).integers(-8, 8, SHAPE).astype(np.float16)
    expected = np.abs(x).astype(np.float32)
    expected[5, 70] += expected_shift
    np.savez(directory / "values.npz", x=x, expect_y=expected)
    spec = {
        "name": "abs of neg",
        "tolerance": {"atol": 0.0, "rtol": 0.0},
        "buffers": {"x": buffer("input", "x"), "t": buffer("temp"), "y": buffer("output")},
        "launches": [
            {"bundle": "k0", "args": ["x", "t"], "arg_index": [0, 1]},
            {"bundle": "k1", "args": ["t", "y"], "arg_index": [0, 1]},
        ],
        "outputs": [
            {
                "buffer": "y",
                "value": "y",
                "shape": SHAPE,
                "stride": contiguous_strides(SHAPE),
                "storage_offset": 0,
                "dtype": "float16",
            }
        ],
    }
    (directory / "case.json").write_text(json.dumps(spec))
    return directory


def test_kernels_run_in_order(tmp_path):
    done = run(read_case(write_case(tmp_path)), device=Device())
    assert done.ok
    assert [(e.index, e.op, e.sdsc) for e in done.executes] == [
        (0, "neg", "k0/sdsc_0.json"),
        (1, "abs", "k1/sdsc_0.json"),
    ]


def test_wrong_element_is_placed_in_the_last_kernel(tmp_path):
    done = run(read_case(write_case(tmp_path, 1.0)), device=Device())
    assert not done.ok
    assert done.comparisons[0].worst_index == (5, 70)
    place = done.places[0]
    writer = place.core_map((1, 5))
    assert writer is not None
    assert (writer.execute, writer.operation, writer.core) == (1, "abs", 0)


def test_what_is_a_case(tmp_path):
    write_case(tmp_path)
    assert case_directory(tmp_path) == tmp_path
    assert case_directory(tmp_path / "case.json") == tmp_path
    assert case_directory(tmp_path / "k0") is None


def damage(directory: Path, change: Any) -> str:
    file = directory / "case.json"
    spec = json.loads(file.read_text())
    change(spec)
    file.write_text(json.dumps(spec))
    with pytest.raises(LaunchError) as caught:
        run(read_case(directory), device=Device())
    assert caught.value.code == "SPY371"
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["launches"][1]["args"].append("z"), "differ in length"),
        (lambda s: s["launches"][0]["arg_index"].__setitem__(0, -1), "share an argument index"),
        (lambda s: s["launches"][0].update(arg_index=[1] * len(s["launches"][0]["args"])), "share"),
        (lambda s: s["launches"][1].update(args=["t", "z"]), "there is no buffer 'z'"),
        (lambda s: s["outputs"][0].update(buffer="q"), "there is no buffer 'q'"),
        (lambda s: s["outputs"][0].update(value="q"), "expect_q"),
        (lambda s: s["outputs"][0].update(storage_offset=7), "exceeds its buffer"),
        (lambda s: s["buffers"]["y"].update(layout=None), "output 'y' has no layout"),
        (lambda s: s["buffers"]["x"].update(value="w"), "array that case.json names is missing"),
        (lambda s: s.pop("tolerance"), "tolerance"),
        (lambda s: s["buffers"]["x"].update(dma_sizes=[4]), "$.buffers.x.dma_sizes"),
        (lambda s: s["buffers"]["x"].update(dma_sizes=[-1, -1]), "are negative"),
        (lambda s: s["buffers"]["y"].update(dma_strides=[2**40, 1]), "more than a host holds"),
        (lambda s: s["buffers"]["y"].update(dma_sizes=[2**70, 1]), "more than a host holds"),
        (lambda s: s["buffers"]["x"].update(host={"shape": []}), "differ in length"),
        (lambda s: s["outputs"][0].update(shape=[1, 1, 1]), "$.outputs[0].shape"),
        (lambda s: s["outputs"][0].update(stride=[]), "differ in length"),
    ],
)
def test_damaged_cases(tmp_path, change, message):
    assert message in damage(write_case(tmp_path), change)


@pytest.mark.parametrize("text", [b"", b"[" * 100_000, b'{"name": "\xff"}'])
def test_texts_that_are_no_case(tmp_path, text):
    write_case(tmp_path)
    (tmp_path / "case.json").write_bytes(text)
    with pytest.raises(LaunchError, match=r"SPY371.*cannot read the case"):
        read_case(tmp_path)


def test_values_that_are_no_archive(tmp_path):
    write_case(tmp_path)
    (tmp_path / "values.npz").write_bytes(b"PK\x03\x04 not an archive")
    with pytest.raises(LaunchError, match=r"SPY371.*cannot read the arrays"):
        read_case(tmp_path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"buffers":' * 100_000, b'{"name": "\xff"}'])
def test_no_json_at_all(tmp_path, content):
    (write_case(tmp_path) / "case.json").write_bytes(content)
    with pytest.raises(LaunchError, match=r"SPY371.*cannot read the case"):
        read_case(tmp_path)


def test_arrays_are_not_unpacked_for_a_case_of_other_sizes(tmp_path, monkeypatch):
    write_case(tmp_path)
    np.savez_compressed(tmp_path / "values.npz", x=np.zeros(3), expect_y=np.zeros(SHAPE))
    monkeypatch.setattr("spyre.runtime.arguments.host_tensor._read_elements", None)
    with pytest.raises(LaunchError, match=r"SPY371.*'x' is not of the size") as caught:
        read_case(tmp_path)
    assert caught.value.finding.found == "3"


def test_arrays_nobody_names_are_left(tmp_path):
    write_case(tmp_path)
    arrays = dict(np.load(tmp_path / "values.npz"))
    np.savez(tmp_path / "values.npz", **arrays, more=np.zeros(1000))
    assert read_case(tmp_path).values.keys() == arrays.keys()
