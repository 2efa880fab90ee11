"""Work division: how the cores share an operation's iteration (hardware reference §4.1).

`divide_op` runs the passes. Everything is a pure function over frozen data, so all of it may be
used from several threads.
"""

from __future__ import annotations

from spyre.torch_backend.inductor.division.plan import (
    WorkDivision,
    core_slices,
    divide_op,
    with_division,
)

__all__ = ["WorkDivision", "core_slices", "divide_op", "with_division"]
