"""How much of a core's LX plans may use.

Source: hardware reference §2: the backend keeps a fifth of it, or what DXP_LX_FRAC_AVAIL says.
"""

from __future__ import annotations

from spyre import config
from spyre.errors import LaunchError
from spyre.hw.spec import LX_BYTES


def lx_capacity_bytes() -> int:
    """Bytes of one core's LX for plans; LaunchError SPY985 if DXP_LX_FRAC_AVAIL is no fraction."""
    text = config.LX_FRACTION_KEPT.read().strip()
    try:
        kept = float(text)
    except ValueError:
        kept = -1.0
    if not 0.0 <= kept <= 1.0:
        raise LaunchError(
            "SPY985",
            "DXP_LX_FRAC_AVAIL is no fraction",
            expected="0 to 1, the share of the scratchpad that plans leave to the backend",
            found=text,
        )
    return int(LX_BYTES * (1.0 - kept))
