"""What the CPU fallback needs to know of an operator, read from its schema once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spyre.torch_backend.compat import schema_of
from spyre.torch_backend.random_state import is_random

UNMARKED_WRITES: dict[str, tuple[str, ...]] = {
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "aten::native_batch_norm": ("running_mean", "running_var"),
}
"""Arguments that operators change although their schema does not say so."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Arguments of an operator, by name.

    ``names``: all, in order. ``tensors``: those that take one tensor. ``written``: those that are
    changed. ``outputs``: those of them that take a result, which they may be resized for.
    ``viewed``: those the result may be a view of. ``generator``: the position of the argument that
    takes one; None without. ``is_random``: it draws random numbers.
    """

    names: tuple[str, ...]
    tensors: frozenset[str]
    written: frozenset[str]
    outputs: frozenset[str]
    viewed: frozenset[str]
    generator: int | None
    is_random: bool


@lru_cache(4096)
def signature_of(op: Any) -> Signature:
    """The signature of an operator overload."""
    schema = schema_of(op)
    arguments = schema.arguments
    names = tuple(a.name for a in arguments)
    marked = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write}
    viewed = {a.name for a in arguments if a.alias_info is not None and not a.alias_info.is_write}
    return Signature(
        names=names,
        tensors=frozenset(a.name for a in arguments if str(a.type) in _ONE_TENSOR),
        written=frozenset(marked.union(UNMARKED_WRITES.get(schema.name, ()))),
        outputs=frozenset(a.name for a in arguments if a.kwarg_only and a.name in marked),
        viewed=frozenset(viewed),
        generator=names.index("generator") if "generator" in names else None,
        is_random=is_random(op),
    )


_ONE_TENSOR = ("Tensor", "Optional[Tensor]")
