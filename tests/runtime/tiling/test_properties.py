"""Tiled = untiled, for random launches; ``python -m tests.runtime.tiling.thousand`` runs more."""

from __future__ import annotations

from hypothesis import given, strategies as st

from spyre.hw.device.device import Device
from tests.examples import examples
from tests.runtime.tiling.random_cases import check_case, random_case


@examples(60)
@given(st.integers(0, 10**9))
def test_tiled_equals_untiled(device: Device, seed: int) -> None:
    case = random_case(seed)
    assert check_case(case, device) == "", str(case)
