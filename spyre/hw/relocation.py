"""Moving a linked program to other addresses without linking it again.

Linking finds for every base address the allocation it is anchored to (:mod:`spyre.hw.anchors`).
Where all bases are anchored, allocations of the same sizes that overlap in the same way may begin
elsewhere: plans, tables and every check stay as they are, and each base moves with its allocation.
Whatever does not fit these conditions is linked anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spyre.hw.aliasing import alias_rows, alias_structure
from spyre.hw.binding import Binding
from spyre.hw.kernels.opcodes import DISPATCH_BASES, DISPATCH_WORDS
from spyre.hw.linked_program import LinkedCode, LinkedPlaces, LinkedProgram
from spyre.hw.nest import Int64Array
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import HBM_BYTES, REGION_BITS, STICK_BYTES
from spyre.mlir.program import Schedule


class MovedPlaces:
    """Places of a linked program whose allocations begin at ``bases``, worked out when asked for.

    Only ``host_dispatch``, which is all that running needs, is made at once. ``names``: of the
    allocations, for messages; those of ``origin`` if empty.
    """

    def __init__(
        self,
        code: LinkedCode,
        origin: LinkedPlaces,
        bases: Sequence[int],
        names: tuple[str, ...] = (),
    ) -> None:
        self.origin = origin
        self.host_dispatch = place_rows(code, origin, np.array([bases], np.int64))
        self._code = code
        self._bases = bases
        self._names = names

    @cached_property
    def binding(self) -> Binding:
        """The launch at the new addresses, its allocations in the order of ``origin``'s."""
        return self.origin.binding.moved(self._bases, self._names)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule with the symbol values of the new addresses."""
        return self._code.program.schedule(self.binding.parameters, self.binding.scratch_addresses)

    @cached_property
    def dispatch(self) -> Int64Array:
        """Dispatches with device addresses."""
        moved = self.origin.dispatch.copy()
        moved[:, DISPATCH_BASES:] += self._shifts[self._code.anchors]
        return moved

    @cached_property
    def runs(self) -> tuple[tuple[PlanRun, ...], ...]:
        """Runs with their new bases."""
        return tuple(tuple(map(self._moved, group)) for group in self.origin.runs)

    def _moved(self, run: PlanRun) -> PlanRun:
        bases = run.bases + self._shifts[run.anchors]
        return PlanRun(run.plan, run.instances, bases, run.pattern, run.divided, run.anchors)

    @cached_property
    def _shifts(self) -> Int64Array:
        """Bytes each allocation moves, and 0 at the end for what has none (index -1)."""
        return np.append(np.array(self._bases, np.int64) - self.origin.bases, 0)


def is_relocatable(linked: LinkedProgram) -> bool:
    """True if every base of ``linked`` is anchored and its allocations lie as `is_movable` asks."""
    origin = linked.places.origin
    return linked.code.movable and is_movable(origin.bases.tolist(), origin.sizes)


def is_movable(addresses: Iterable[int], sizes: Iterable[int]) -> bool:
    """True if all allocations begin on a stick and lie within one region of HBM each."""
    for low, size in zip(addresses, sizes, strict=True):
        last = low + (size or 1) - 1
        if low % STICK_BYTES or last >> REGION_BITS != low >> REGION_BITS:
            return False
        if low < 0 or last >= HBM_BYTES:
            return False
    return True


def movable_rows(addresses: Int64Array, sizes: Int64Array) -> npt.NDArray[np.bool_]:
    """`is_movable` of many launches at once, [launch]; ``addresses``: [launch, allocation]."""
    last = addresses + np.maximum(sizes, 1) - 1
    outside = (addresses < 0) | (last >= HBM_BYTES) | (addresses % STICK_BYTES != 0)
    outside |= last >> REGION_BITS != addresses >> REGION_BITS
    inside: npt.NDArray[np.bool_] = ~outside.any(axis=1)
    return inside


def relocated(
    linked: LinkedProgram, bases: Sequence[int], names: tuple[str, ...] = ()
) -> LinkedProgram | None:
    """``linked`` with allocation ``k`` of the binding it was linked for at ``bases[k]``.

    Equal to linking at those addresses; None where it has to be linked anew: `is_relocatable` says
    no, or the allocations do not lie as `is_movable` asks or overlap in another way.
    """
    origin = linked.places.origin
    if not is_relocatable(linked) or not is_movable(bases, origin.sizes):
        return None
    if alias_structure(bases, origin.sizes) != origin.aliases:
        return None
    return move(linked, bases, names)


def move(linked: LinkedProgram, bases: Sequence[int], names: tuple[str, ...] = ()) -> LinkedProgram:
    """`relocated` for callers who know that it is not None: conditions are not looked at."""
    places = MovedPlaces(linked.code, linked.places.origin, bases, names)
    return LinkedProgram(linked.code, places)


def batched(linked: LinkedProgram, bases: Int64Array) -> Int64Array | None:
    """Dispatches of many launches one behind another, bases as host offsets.

    ``bases``: where the allocations begin, [launch, allocation] → [launch · dispatch,
    DISPATCH_WORDS]. None where `relocated` would give None for one of them.
    """
    origin = linked.places.origin
    sizes = np.array(origin.sizes, np.int64)
    if not is_relocatable(linked) or not movable_rows(bases, sizes).all():
        return None
    if (alias_rows(bases, sizes) != alias_rows(origin.bases[None], sizes)).any():
        return None
    return place_rows(linked.code, origin, bases)


def place_rows(code: LinkedCode, origin: LinkedPlaces, bases: Int64Array) -> Int64Array:
    """`batched` without looking at the conditions."""
    from spyre.hw.kernels.placing import place_dispatches

    rows = np.empty((len(bases) * len(origin.dispatch), DISPATCH_WORDS), np.int64)
    place_dispatches(origin.dispatch, code.anchors, origin.bases, bases, rows)
    return rows
