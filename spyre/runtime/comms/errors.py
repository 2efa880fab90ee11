"""What ends a collective, and with it its group."""

from __future__ import annotations

from spyre.errors import SpyreError


class CollectiveError(SpyreError):
    """A collective could not be done: SPY952, SPY954 to SPY957; the group is dead from then on."""

    exit_code = 1
