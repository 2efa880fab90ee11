"""Give an arithmetic error its place: the same diagnosis as another kind of error, located.

Arithmetic (affine maps, values) knows no text; whoever calls it knows the statement.
"""

from __future__ import annotations

from typing import TypeVar

from spyre.errors import Location, SpyreError

E = TypeVar("E", bound=SpyreError)


def relocate(error: SpyreError, kind: type[E], location: Location | None) -> E:
    """``error`` as a ``kind`` at ``location``."""
    finding = error.finding
    return kind(
        finding.code,
        finding.message,
        location,
        expected=finding.expected,
        found=finding.found,
        hint=finding.hint,
    )
