"""What automatic tiling chose for a stretch, and why, as text."""

from __future__ import annotations

from collections.abc import Sequence

from spyre.torch_backend.inductor.auto_tile.search import Levels, Outcome, best_of

SHOWN = 8
"""Rows of possible tiles that are shown, the best first."""


def levels_text(levels: Levels) -> str:
    """``dim0: 8, dim1: 2``, the outermost loop first."""
    return ", ".join(f"{level.dim}: {level.count}" for level in levels) or "no tiles"


def stretch_text(
    names: Sequence[str], outcomes: Sequence[Outcome], chosen: Levels, left: str
) -> str:
    """A paragraph per stretch: what was chosen, and what else was looked at.

    ``left``: why the stretch stays whole in spite of what loops would save.
    """
    best, whole = best_of(outcomes), outcomes[0]
    saved = 1.0 - best.time_ns / whole.time_ns
    why = f"saves {saved:.1%} of the modelled time" if chosen else f"loops save {saved:.1%} at most"
    lines = [f"{', '.join(names)}: {levels_text(chosen)}, {why}{left}"]
    possible = sorted((o for o in outcomes if o.is_possible), key=lambda o: o.time_ns)
    shown = possible[:SHOWN]
    if whole.is_possible and whole not in shown:
        shown.append(whole)
    lines += [f"    {_outcome_text(outcome)}" for outcome in shown]
    if len(possible) > len(shown):
        lines.append(f"    {len(possible) - len(shown)} more, slower ones")
    refused = [outcome for outcome in outcomes if not outcome.is_possible]
    lines += [f"    {levels_text(o.levels)}: {o.why}" for o in refused[:SHOWN]]
    if len(refused) > SHOWN:
        lines.append(f"    {len(refused) - SHOWN} more that cannot be")
    return "\n".join(lines) + "\n"


def _outcome_text(outcome: Outcome) -> str:
    return (
        f"{levels_text(outcome.levels)}: {outcome.time_ns / 1e3:,.1f} us, "
        f"{outcome.hbm_bytes:,} bytes in HBM, {outcome.lx_bytes:,} of LX"
    )
