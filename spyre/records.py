"""Records with fields that equality, hash and text ignore, such as their place in a file."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import msgspec


class PartlyCompared(msgspec.Struct, frozen=True, eq=False):
    """Base of structs whose equality, hash and text ignore the fields named in ``uncompared``."""

    uncompared: ClassVar[frozenset[str]] = frozenset()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _compared(type(self)))

    def __ne__(self, other: object) -> bool:  # that of `msgspec.Struct` compares identities
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in _compared(type(self)))))

    def __repr__(self) -> str:
        pairs = (f"{name}={getattr(self, name)!r}" for name in _compared(type(self)))
        return f"{type(self).__name__}({', '.join(pairs)})"


@lru_cache(maxsize=256)
def _compared(kind: type[PartlyCompared]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name not in kind.uncompared)
