"""How many random cases property tests run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


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
