"""A profile for people: its table, its files, its JSON object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spyre.runtime.profile.json_form import profile_object
from spyre.runtime.profile.plot import write_roofline
from spyre.runtime.profile.profile_data import ProfileData
from spyre.runtime.profile.report.page import write_report
from spyre.runtime.profile.table import make_table, profile_text

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, eq=False)
class Profile(ProfileData):
    """What a card would have done, by a cost model."""

    def table(self, every: bool = False) -> Table:
        """A `rich` table: a row per execute, per kind of execute or per kernel where they are many.

        ``every``: a row per execute however many there are.
        """
        return make_table(self, every)

    def report(self, path: Path | str, title: str = "spyre profile") -> None:
        """Write the report, one HTML page that needs nothing else. ProfileError SPY782."""
        write_report(path, self, title)

    def roofline(self, path: Path | str) -> None:
        """Write the roofline as a picture; ProfileError SPY780 without matplotlib, SPY782."""
        write_roofline(path, self)

    def to_json(self) -> dict[str, object]:
        """Everything as one JSON object: what ``spyre-run --profile --json`` has as ``profile``."""
        return profile_object(self)

    def __str__(self) -> str:
        return profile_text(self)
