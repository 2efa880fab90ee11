"""Hashes of all results equal those in the repository on every processor."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping

import llvmlite.binding as llvm
import pytest

from tests.hw import bits

pytest.importorskip("torch")


LONG = "SPYRE_TEST_EXAMPLES" in os.environ
FEATURES = {"generic": "", "haswell": "avx2", "skylake-avx512": "avx512bw"}
"""Processors from old to new, with a feature of those that can act as one."""


def differing(found: Mapping[str, str]) -> list[str]:
    kept = bits.kept()
    assert list(found) == list(kept)
    return [name for name in kept if found[name] != kept[name]]


def test_bits_are_those_of_the_repository():
    found = {name: compute() for name, compute in bits.computations()}
    assert differing(found) == []


def unlike_this_one() -> list[str]:
    """Processors to compile all kernels for, half a minute each.

    In the long form all that this one can act as; else the best of them but for that whose
    instructions are like its own, which the test above has run.
    """
    has = llvm.get_host_cpu_features()
    can_be = [name for name, feature in FEATURES.items() if not feature or has.get(feature, False)]
    return can_be if LONG else can_be[:-1][-1:] or can_be


@pytest.mark.parametrize("processor", unlike_this_one())
def test_bits_do_not_depend_on_the_processor(processor: str):
    """In a new process, for whose code these are NUMBA_CPU_NAME's instructions."""
    environment = {**os.environ, "NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
    environment.pop("SPYRE_VECTOR_WIDTH", None)
    command = [sys.executable, "-m", "tests.hw.bits"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert differing(tomllib.loads(done.stdout)) == []
