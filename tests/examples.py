"""Numbers of test cases by default, and in the long form with SPYRE_TEST_EXAMPLES."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

ItemT = TypeVar("ItemT")


def sample(items: Sequence[ItemT], step: int, first: int = 0) -> Sequence[ItemT]:
    """Every ``step``-th of the items from number ``first`` on; in the long form all of them."""
    return items if "SPYRE_TEST_EXAMPLES" in os.environ else items[first::step]


def examples(count: int) -> settings:
    """Settings for a quarter of ``count`` cases, at least 8, the same in every run.

    SPYRE_TEST_EXAMPLES=N: N quarters, other cases each time; prints how to repeat one that fails.
    """
    factor = int(os.environ.get("SPYRE_TEST_EXAMPLES", "1"))
    return settings(
        max_examples=max(count * factor // 4, 8),
        deadline=None,
        derandomize=factor == 1,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
