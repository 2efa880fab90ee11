"""Which argument an operand's address names: not where it points, but what it is computed from.

In a symbolic bundle the expression of a symbol says it (`%arg_0_base_addr + 2048 * %i`), in a baked
one the segment of the address does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spyre.hw.binding import Allocation
from spyre.hw.nest import Int64Array
from spyre.hw.sanitizer.site import Site
from spyre.hw.spec import REGION_BITS
from spyre.mlir.operation import Component
from spyre.mlir.value import AllocationAtom, Atom, Derived, ParameterAtom, Value


@dataclass(frozen=True)
class Owners:
    """Per core of one operand the allocation its address names (None where nothing is named).

    Loops change an address, never what it is computed from, so instances share their owners.
    """

    allocations: tuple[Allocation | None, ...]

    @property
    def lows(self) -> Int64Array:
        """First byte each core may touch."""
        return np.array([a.address_bytes if a else 0 for a in self.allocations], np.int64)

    @property
    def highs(self) -> Int64Array:
        """End of what each core may touch."""
        top = np.iinfo(np.int64).max
        return np.array([a.end_bytes if a else top for a in self.allocations], np.int64)


def find_owners(site: Site, operand: int) -> Owners:
    """What the start addresses of ``operand`` name, per core."""
    tensor = site.op.tensors[operand]
    if tensor.component is not Component.HBM:
        return Owners((None,) * len(site.op.cores))
    if tensor.symbolic:
        values = dict(zip(site.execute.symbol_ids, site.execute.symbols, strict=True))
        return Owners(tuple(_of_value(site, values[symbol]) for symbol in tensor.starts))
    return Owners(tuple(_of_segment(site, start >> REGION_BITS) for start in tensor.starts))


def _of_segment(site: Site, segment: int) -> Allocation | None:
    segments = site.linked.binding.segments
    return None if segments is None else _at(site, segments.get(segment))


def _of_value(site: Site, value: Value) -> Allocation | None:
    """The one address the value is computed from; None when there are several or none."""
    binding, program = site.linked.binding, site.linked.program
    bases = set()
    for atom in set(_atoms(value)):
        if isinstance(atom, AllocationAtom):
            bases.add(binding.scratch_addresses[atom.index])
        elif isinstance(atom, ParameterAtom):
            parameter = program.parameters[atom.index]
            if parameter.kind == "input_arg" and parameter.max_value is None:
                bases.add(binding.parameters[parameter.name])
    return _at(site, bases.pop()) if len(bases) == 1 else None


def _atoms(value: Value) -> Iterator[Atom]:
    for atom, _ in value.terms:
        if isinstance(atom, Derived):
            yield from _atoms(atom.left)
            yield from _atoms(atom.right)
        else:
            yield atom


def _at(site: Site, address: int | None) -> Allocation | None:
    """The allocation that begins at ``address``; of views of one memory the largest."""
    binding = site.linked.binding
    begin = None if address is None else binding.origin(address)
    found = [a for a in binding.allocations if a.address_bytes == begin]
    return max(found, key=lambda a: a.size_bytes, default=None)
