"""Readings: every switch has another position, and there kernels and twin agree as well."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields

import pytest

from spyre import config
from spyre.hw.ops import find_op
from spyre.hw.readings import READINGS, Readings, reading_rows, readings_of

OTHERS = {
    "gelu_form": "tanh",
    "leaky_slope": 0.25,
    "fnms_form": "-c-ab",
    "batchnorm_operands": "shift-scale",
    "variance_floor": False,
    "exx2_lanes": "first",
    "token_maximum": 64.0,
    "token_clip": "maximum",
    "topk_ties": "highest",
}
SCRIPT = """
from dataclasses import replace
import spyre.hw.readings as readings
readings.READINGS = replace(readings.READINGS, **{others!r})
from tests.hw.readings_script import compare_all
compare_all()
"""


def test_every_switch_is_tested_in_another_position():
    assert set(OTHERS) == {switch.name for switch in fields(Readings)}
    for name, value in OTHERS.items():
        assert getattr(READINGS, name) != value


def test_readings_name_operations_of_the_table():
    for row in reading_rows():
        assert row.meaning
        assert row.ops
        for name in row.ops:
            assert find_op(name) is not None
            assert row.name in readings_of(name)


def digests(others: dict[str, object], cache: str) -> dict[str, str]:
    """Result of every reading's operation, in a process of its own: kernels take the positions
    when they are compiled.
    """
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(others=others)],
        env={**os.environ, "SPYRE_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return dict(line.split() for line in found.stdout.splitlines())


@pytest.mark.slow
def test_kernels_and_twin_take_the_same_position(tmp_path):
    default = digests({}, str(config.cache_directory()))
    other = digests(OTHERS, str(tmp_path))
    assert set(default) == set(other) == set(OTHERS)
    assert [name for name in OTHERS if default[name] == other[name]] == []
