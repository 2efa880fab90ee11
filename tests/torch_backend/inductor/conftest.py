"""Fixtures that make compilations of small functions cheaper."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def what_nobody_reads_is_not_made() -> Iterator[None]:
    """Times of guards, for which Dynamo flushes the processor's caches, and the compiler's trace,
    which it writes where its logger has a handler, as pytest gives one to every logger.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0)
        patched.setattr("torch._logging._internal.trace_log", logging.Logger("no handlers"))
        yield
