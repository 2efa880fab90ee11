"""Readings: every switch has another position, and there kernels and reference agree as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spyre.hw import spec_choices
from spyre.hw.ops.table import SPEC_NAMES, find_op
from tests.hw.spec_choices_script import compare_all
from tools.docs import reading_rows, readings_of

OTHERS = {
    "GELU_FORM": "tanh",
    "LEAKY_SLOPE": 0.25,
    "FNMS_FORM": "-c-ab",
    "BATCHNORM_OPERANDS": "shift-scale",
    "VARIANCE_FLOOR": False,
    "EXX2_LANES": "first",
    "TOKEN_MAXIMUM": 64.0,
    "TOKEN_CLIP": "maximum",
    "TOPK_TIES": "highest",
}
SCRIPT = """
from spyre.hw import spec_choices
vars(spec_choices).update({others!r})
from tests.hw.spec_choices_script import compare_all
for name, digest in compare_all().items():
    print(name, digest)
"""


def test_every_switch_is_tested_in_another_position():
    for name, value in OTHERS.items():
        assert getattr(spec_choices, name) != value
    assert {row.name for row in reading_rows() if row.value} >= set(OTHERS)


def test_readings_name_operations_of_the_table():
    for row in reading_rows():
        assert row.meaning
        assert row.ops
        for name in row.ops:
            assert find_op(name) is not None or name in SPEC_NAMES
            assert row.name in readings_of(name)


def digests_with(others: dict[str, object], cache: Path) -> dict[str, str]:
    """Result of every reading's operation, in another process: kernels take the positions when they
    are compiled. Kernels with other choices have the same sources: they need another cache.
    """
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(others=others)],
        # with few optimizations they compile faster, and have the same bits
        env={**os.environ, "SPYRE_CACHE_DIR": str(cache), "NUMBA_OPT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return dict(line.split() for line in found.stdout.splitlines())


@pytest.mark.slow
def test_kernels_and_twin_take_the_same_position(tmp_path: Path):
    default = compare_all()
    other = digests_with(OTHERS, tmp_path)
    assert set(default) == set(other) == set(OTHERS)
    assert [name for name in OTHERS if default[name] == other[name]] == []
