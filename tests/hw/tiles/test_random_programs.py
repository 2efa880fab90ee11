"""Random KTIR programs on the engine against the plain interpreter, bit for bit.

``SPYRE_KTIR_PROGRAMS`` is how many; 500 take some minutes.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import spyre
from spyre.dtypes import decode_device, encode_device
from spyre.hw.device.device import Device
from spyre.mlir.tiles.program import load_ktir
from tests.hw.tiles.plain import Plain
from tests.hw.tiles.random_programs import RandomProgram

COUNT = int(os.environ.get("SPYRE_KTIR_PROGRAMS", "40"))
FIRST = int(os.environ.get("SPYRE_KTIR_FIRST", "0"))
DEVICES = {"dl16": ("dl16", 1, None), "ieee": ("ieee", 2, None), "order": ("dl16", 2, "random:7")}
"""Number mode, threads, order of the cores."""


@pytest.fixture(scope="module")
def devices():
    return {
        name: Device(mode, threads, **({"core_order": order} if order else {}))
        for name, (mode, threads, order) in DEVICES.items()
    }


def rounding(device):
    rules = device.numerics.alu_rules

    def half(values):
        codes = encode_device(np.asarray(values, np.float32), "SEN169_FP16", rules)
        return np.asarray(decode_device(codes, "SEN169_FP16", rules), np.float32)

    return half


def differences(seed, device):
    """Names of pointers whose memory differs after the run."""
    made = RandomProgram(seed)
    program = load_ktir(made.text)
    assert program.check() == (), made.text
    half = rounding(device)
    expected = Plain(program, half).run(made.given)
    result = spyre.run(program, made.given, device=device)
    found = {}
    for tensor, values in zip(result.output_tensors, result.outputs, strict=True):
        wanted = expected[tensor.name].reshape(np.shape(values))
        own = np.asarray(values, np.float32)
        if made.given[tensor.name].dtype == np.float16:  # as outputs are given to the host
            wanted = wanted.astype(np.float16).astype(np.float32)
        if not np.array_equal(own, wanted, equal_nan=True):
            found[tensor.name] = np.argwhere(own != wanted)[:5].tolist()
    return found, made.text


@pytest.mark.parametrize("name", DEVICES)
def test_random_programs(devices, name):
    for seed in range(FIRST, FIRST + COUNT):
        found, text = differences(seed, devices[name])
        assert not found, f"seed {seed} on {name}: {found}\n{text}"
