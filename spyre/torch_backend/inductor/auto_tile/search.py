"""The least modelled time of a range of operations: over loops on one of its dims, then on two;
and the report of what was found.

Costs fall when tiles become small enough for the scratchpads and rise again as runs get many: the
search follows counts upwards until they have risen for a while. Two loops begin with the best
count of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from spyre.torch_backend.inductor.auto_tile.candidates import counts_of
from spyre.torch_backend.inductor.tiling import TileLevel

Levels = tuple[TileLevel, ...]
UNTILED: Levels = ()
COUNT_DOES_NOT_FIT = "SPY973"
"""The error of tiles that cut sticks: others may not."""
RISES = 3
"""Counts in a row that are worse than the best one, after which larger counts are not tried."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What tiles of a stretch would cost.

    ``time_ns``: modelled; infinite where these tiles cannot be, ``why`` then says why not.
    ``hbm_bytes``: read and written in device memory, ``intermediate_bytes`` of them for what the
    stretch makes and reads itself. ``lx_bytes``: the most of one scratchpad.
    """

    levels: Levels
    time_ns: float
    hbm_bytes: int = 0
    intermediate_bytes: int = 0
    lx_bytes: int = 0
    why: str = ""

    @property
    def is_hopeless(self) -> bool:
        """Whether other counts along the same dims cannot be either."""
        return bool(self.why) and not self.why.startswith(COUNT_DOES_NOT_FIT)

    @property
    def is_possible(self) -> bool:
        """Whether there is a kernel with these tiles."""
        return not self.why


NESTED_DIMS = 2
"""Dims that are tried in two loops: those that one loop gains most on."""
Trial = Callable[[Levels], Outcome]


def best_levels(extents: Mapping[str, int], trial: Trial) -> list[Outcome]:
    """All outcomes that were looked at, untiled first; `best_of` names the best.

    ``extents``: elements of the dims that may be tiled. ``trial`` is called once per levels.
    """
    outcomes: dict[Levels, Outcome] = {UNTILED: trial(UNTILED)}
    if not outcomes[UNTILED].is_possible:
        return list(outcomes.values())

    def look(levels: Levels) -> Outcome:
        if levels not in outcomes:
            outcomes[levels] = trial(levels)
        return outcomes[levels]

    singles = [_best_count(name, extent, look) for name, extent in extents.items()]
    ordered = sorted(filter(None, singles), key=lambda outcome: outcome.time_ns)
    _nest(ordered[:NESTED_DIMS], extents, look)
    return list(outcomes.values())


def best_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The one with the least time; of equal ones the first, which has the fewest iterations."""
    return min(outcomes, key=lambda outcome: outcome.time_ns)


def _best_count(name: str, extent: int, look: Trial) -> Outcome | None:
    outcomes = list(_climb(((TileLevel(n, name),) for n in counts_of(extent)), look))
    return best_of(outcomes) if outcomes else None


def _climb(candidates: Iterator[Levels], look: Trial) -> Iterator[Outcome]:
    """Outcomes of candidates with rising counts, until all results are in the scratchpads and
    times have risen for a while.
    """
    best, worse = float("inf"), 0
    for levels in candidates:
        outcome = look(levels)
        if not outcome.is_possible:
            if outcome.is_hopeless:
                return
            continue
        yield outcome
        is_worse = outcome.time_ns > best and not outcome.intermediate_bytes
        worse = 0 if outcome.time_ns < best else worse + is_worse
        best = min(best, outcome.time_ns)
        if worse == RISES:
            return


def _nest(singles: Sequence[Outcome], extents: Mapping[str, int], look: Trial) -> None:
    """Two loops: around each other, the counts of both in turn, from the best of one loop on."""
    for outer, inner in permutations(singles, 2):
        level, name = outer.levels[0], inner.levels[0].dim
        for _ in range(2):
            pairs = ((level, TileLevel(n, name)) for n in counts_of(extents[str(name)]))
            second = list(_climb(pairs, look))
            if not second:
                break
            chosen = best_of(second).levels[1]
            pairs = ((TileLevel(n, level.dim), chosen) for n in counts_of(extents[str(level.dim)]))
            first = list(_climb(pairs, look))
            if not first or best_of(first).levels[0] == level:
                break
            level = best_of(first).levels[0]


MOST_SHOWN = 8
"""Rows of possible tiles that are shown, the best first."""


def levels_text(levels: Levels) -> str:
    """``dim0: 8, dim1: 2``, the outermost loop first."""
    return ", ".join(f"{level.dim}: {level.count}" for level in levels) or "no tiles"


def range_text(names: Sequence[str], outcomes: Sequence[Outcome], chosen: Levels, left: str) -> str:
    """A paragraph per stretch: what was chosen, and what else was looked at.

    ``left``: why the stretch stays whole in spite of what loops would save.
    """
    best, whole = best_of(outcomes), outcomes[0]
    saved = 1.0 - best.time_ns / whole.time_ns
    why = f"saves {saved:.1%} of the modelled time" if chosen else f"loops save {saved:.1%} at most"
    lines = [f"{', '.join(names)}: {levels_text(chosen)}, {why}{left}"]
    possible = sorted((o for o in outcomes if o.is_possible), key=lambda o: o.time_ns)
    shown = possible[:MOST_SHOWN]
    if whole.is_possible and whole not in shown:
        shown.append(whole)
    lines += [f"    {_outcome_text(outcome)}" for outcome in shown]
    if len(possible) > len(shown):
        lines.append(f"    {len(possible) - len(shown)} more, slower ones")
    refused = [outcome for outcome in outcomes if not outcome.is_possible]
    lines += [f"    {levels_text(o.levels)}: {o.why}" for o in refused[:MOST_SHOWN]]
    if len(refused) > MOST_SHOWN:
        lines.append(f"    {len(refused) - MOST_SHOWN} more that cannot be")
    return "\n".join(lines) + "\n"


def _outcome_text(outcome: Outcome) -> str:
    return (
        f"{levels_text(outcome.levels)}: {outcome.time_ns / 1e3:,.1f} us, "
        f"{outcome.hbm_bytes:,} bytes in HBM, {outcome.lx_bytes:,} of LX"
    )
