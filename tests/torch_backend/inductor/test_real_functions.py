"""The functions of the real bundles, compiled here: right values, and bundles without findings.

A sample of `python -m qa.conformance_compiled`: every function in one setting, a few in all.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from qa.conformance_compiled.check import FunctionChecks
from qa.conformance_compiled.jobs import groups
from qa.conformance_compiled.outcome import SAME, SETTINGS, Setting
from qa.conformance_compiled.real_functions import read_function
from tests.conftest import SHARED

BUNDLES = SHARED / "bundles"
GROUPS = groups(BUNDLES, "")
"""Cases that are compiled alike stand together, named by the first."""

FEW = (
    *("block_rope", "chunk_swiglu", "mm_67x100x70", "permute_4d_0213", "sdpa_gqa"),
    "up_test_reduce_multidim_keepdim0_amin_pad_5d_dim_234",
)
"""For every setting: K divided among cores, more arguments than segments, shapes with padding."""

SETTINGS_OF_FEW = tuple(s for s in SETTINGS if s.cores in (1, 8, 32))

pytestmark = pytest.mark.skipif(not GROUPS, reason="the real bundles (../shared) are not here")


@pytest.fixture
def checks(tmp_path):
    count = itertools.count()

    def make(*paths: Path) -> FunctionChecks:
        functions = [read_function(path) for path in paths]
        return FunctionChecks(functions, lambda: tmp_path / str(next(count)))

    return make


@pytest.mark.parametrize("paths", GROUPS, ids=lambda paths: paths[0].name)
def test_a_real_function(paths, checks):
    found = list(checks(*paths).outcomes([Setting("symbolic", 32)]))
    assert [outcome.name for outcome in found] == [path.name for path in paths]
    assert [outcome.faults for outcome in found] == [()] * len(paths)


@pytest.mark.parametrize("name", FEW)
def test_settings_do_not_change_bits(name, checks):
    found = list(checks(BUNDLES / name).outcomes(SETTINGS_OF_FEW))
    assert len(found) == len(SETTINGS_OF_FEW)
    for outcome in found:
        assert outcome.faults == ()
        assert outcome.bits == SAME


def test_kernels_with_more_arguments_than_segments_are_cut(checks):
    whole, cut = checks(BUNDLES / "sdpa_gqa").outcomes(
        [Setting("symbolic", 32), Setting("baked", 32)]
    )
    assert (whole.kernels, whole.arguments) == (1, 8)
    assert cut.kernels == 2
    assert cut.operations == whole.operations
