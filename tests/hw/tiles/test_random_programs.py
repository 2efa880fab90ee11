"""Random KTIR programs on the engine against the plain interpreter, bit for bit.

``SPYRE_KTIR_PROGRAMS`` is how many; 500 take some minutes.
"""

from __future__ import annotations

import os
import random
import re

import numpy as np
import pytest

import spyre
from spyre import SpyreError
from spyre.dtypes import decode_device, encode_device
from spyre.hw.device.device import Device
from spyre.mlir.tiles.program import load_ktir
from tests.hw.tiles.plain import Plain
from tests.hw.tiles.random_programs import RandomProgram

COUNT = int(os.environ.get("SPYRE_KTIR_PROGRAMS", "40"))
FIRST = int(os.environ.get("SPYRE_KTIR_FIRST", "0"))
DEVICES = {
    "dl16": ("dl16", 1, None), "ieee": ("ieee", 2, None), "order": ("dl16", 2, "random:7"),
    "chunks": ("dl16-chunk", 1, None),
}  # fmt: skip
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


def differences(made, text, device):
    """Names of pointers whose memory differs after the run."""
    program = load_ktir(text)
    assert program.check() == (), text
    half = rounding(device)
    result = spyre.run(program, made.given, device=device)
    numerics = device.numerics
    plain = Plain(program, half, numerics.alu_rules if numerics.chunked else None)
    expected = plain.run(made.given)
    found = {}
    for tensor, values in zip(result.output_tensors, result.outputs, strict=True):
        wanted = expected[tensor.name].reshape(np.shape(values))
        own = np.asarray(values, np.float32)
        if made.given[tensor.name].dtype == np.float16:  # as outputs are given to the host
            wanted = wanted.astype(np.float16).astype(np.float32)
        if not np.array_equal(own, wanted, equal_nan=True):
            found[tensor.name] = np.argwhere(own != wanted)[:5].tolist()
    return found


@pytest.mark.parametrize("name", DEVICES)
def test_random_programs(devices, name):
    for seed in range(FIRST, FIRST + COUNT):
        made = RandomProgram(seed)
        found = differences(made, made.text, devices[name])
        assert not found, f"seed {seed} on {name}: {found}\n{made.text}"


ROWS_OF_CLIPPED_TILES = 14015


def test_random_programs_have_no_findings():
    """Of the sanitizer, in memory that no other program has written."""
    for seed in (*range(FIRST, FIRST + COUNT // 4), ROWS_OF_CLIPPED_TILES):
        made = RandomProgram(seed)
        device = Device("dl16", 1, sanitize=True, poison=True)
        result = spyre.run(load_ktir(made.text), made.given, device=device)
        assert result.findings == (), f"seed {seed}: {result.findings[0]}\n{made.text}"


NUMBERS = (0, 1, 2, 3, 7, 33, 63, 64, 65, 128, 10**30)
WORDS = ("f16", "f32", "i32", "index", "addf", "mulf", "maximumf", "negf", "oge", "global")


def spoiled(text, rng):
    """``text`` with a token dropped, or a number, word or value replaced."""
    tokens = list(re.finditer(r"%\w+|[\w.!#]+|->|>=|\S", text))
    kind = rng.randrange(4)
    fitting = {
        1: [m for m in tokens if m[0].isdigit()],
        2: [m for m in re.finditer("|".join(WORDS), text)],
        3: [m for m in tokens if m[0][0] == "%"],
    }.get(kind, tokens)
    chosen = rng.choice(fitting)
    new = {
        0: lambda: "",
        1: lambda: str(rng.choice([*NUMBERS, int(chosen[0]) + 1])),
        2: lambda: rng.choice(WORDS),
        3: lambda: rng.choice(fitting)[0],
    }[kind]()
    return text[: chosen.start()] + new + text[chosen.end() :]


def test_spoiled_programs(devices):
    """Each is refused by a code, or gives what the interpreter gives."""
    rng, ran = random.Random(FIRST), 0
    for seed in range(FIRST, FIRST + 5 * COUNT):
        made = RandomProgram(seed)
        text = spoiled(made.text, rng)
        try:
            if load_ktir(text).check():
                continue
            found = differences(made, text, devices["ieee"])
        except SpyreError:
            continue
        assert not found, f"seed {seed}: {found}\n{text}"
        ran += 1
    assert ran > COUNT / 4, "mutants that are right programs"
