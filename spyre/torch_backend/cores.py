"""How many cores an operation may use."""

from __future__ import annotations

from spyre import config
from spyre.errors import LaunchError
from spyre.hw.spec import CORES


def usable_cores() -> int:
    """SENCORES; LaunchError SPY902 unless it is a number from 1 to 32."""
    text = config.SENCORES.read().strip()
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= CORES):
        raise LaunchError(
            "SPY902", "SENCORES is no number of cores", expected=f"1 to {CORES}", found=text
        )
    return int(text)
