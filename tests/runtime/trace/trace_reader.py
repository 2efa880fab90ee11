"""Reads Chrome traces in tests, and checks properties of every trace."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

Event = dict[str, Any]


def span_ns(span: Event) -> tuple[int, int]:
    begin = round(span["ts"] * 1000)
    return begin, begin + round(span["dur"] * 1000)


def is_within(inner: Event, outer: Event) -> bool:
    (a, b), (first, last) = span_ns(inner), span_ns(outer)
    return first <= a <= b <= last


class Trace:
    """The events of a trace by kind. ``modelled``: take processes with modelled time instead."""

    def __init__(self, content: dict[str, Any], modelled: bool = False) -> None:
        every: list[Event] = content["traceEvents"]
        apart = {
            e["pid"]
            for e in every
            if e["name"] == "process_name" and "modelled" in e["args"]["name"]
        }
        self.events = [e for e in every if (e["pid"] in apart) is modelled]
        self.modelled = None if modelled else Trace(content, modelled=True)
        self.spans = [e for e in self.events if e["ph"] == "X"]
        self._names = self._metadata("thread_name", "name")
        self._order = self._metadata("thread_sort_index", "sort_index")

    def _metadata(self, kind: str, key: str) -> dict[tuple[int, int], Any]:
        found = [e for e in self.events if e["name"] == kind]
        assert all(e["ph"] == "M" for e in found)
        named = {(e["pid"], e["tid"]): e["args"][key] for e in found}
        assert len(named) == len(found)
        return named

    @property
    def track_names(self) -> list[str]:
        """Names of all tracks as they are shown."""
        order = sorted(self._names, key=lambda t: (t[0], self._order[t]))
        return [self._names[track] for track in order]

    @property
    def processes(self) -> list[str]:
        return [e["args"]["name"] for e in self.events if e["name"] == "process_name"]

    def on(self, name: str, process: int = 1) -> list[Event]:
        """The spans of a track in order of time."""
        found = [
            s for s in self.spans
            if s["pid"] == process and self._names[process, s["tid"]] == name
        ]  # fmt: skip
        return sorted(found, key=span_ns)

    @property
    def arrows(self) -> list[tuple[str, str]]:
        """(from, to) labels of all arrows in the order they were numbered."""
        ends: dict[int, list[str]] = {}
        for event in self.events:
            if event["ph"] in "sf":
                ends.setdefault(event["id"], []).append(self._label_at(event))
        assert all(len(pair) == 2 for pair in ends.values())
        return [(pair[0], pair[1]) for _, pair in sorted(ends.items())]

    def _label_at(self, arrow: Event) -> str:
        """The span an end of an arrow is attached to: it is on its track and begins there."""
        place = (arrow["pid"], arrow["tid"], arrow["ts"])
        (label,) = (
            s["args"]["block"] for s in self.spans if (s["pid"], s["tid"], s["ts"]) == place
        )
        return str(label)

    def check(self) -> None:
        """Check the properties that every trace must have."""
        assert self.spans
        for event in self.events:
            assert {"ph", "pid", "tid", "ts", "name"} <= set(event)
            assert event["ph"] in ("M", "X", "s", "f", "C")
            assert event["ts"] >= 0
            assert event["pid"] > 0
        self._check_tracks()
        self._check_parents()
        for event in self.counters():
            assert event["args"]
            assert all(value >= 0 for value in event["args"].values())

    def counters(self, name: str | None = None) -> list[Event]:
        """The values of counters in order of time, of all or those of a name."""
        found = [e for e in self.events if e["ph"] == "C" and name in (None, e["name"])]
        for key in {(e["pid"], e["name"]) for e in found}:
            times = [e["ts"] for e in found if (e["pid"], e["name"]) == key]
            assert times == sorted(times)
        return found

    def _check_tracks(self) -> None:
        """All tracks are named, numbered and used; spans of one do not overlap."""
        used = {(s["pid"], s["tid"]) for s in self.spans}
        assert used == set(self._names) == set(self._order)
        for process, track in used:
            spans = sorted(
                span_ns(s) for s in self.spans if (s["pid"], s["tid"]) == (process, track)
            )
            assert all(a[1] <= b[0] for a, b in pairwise(spans))
            assert all(begin <= end for begin, end in spans)

    def _check_parents(self) -> None:
        """Check that cores' spans are within their block, which has a stream and an engine span."""
        parents: dict[tuple[int, str, int], list[Event]] = {}
        children = []
        for span in self.spans:
            if self._names[span["pid"], span["tid"]].startswith("core"):
                children.append(span)
            else:
                parents.setdefault(_block(span), []).append(span)
        for pair in parents.values():
            names = sorted(self._names[s["pid"], s["tid"]].split()[0] for s in pair)
            assert names == ["engine", "stream"]
            assert span_ns(pair[0]) == span_ns(pair[1])
        for child in children:
            assert is_within(child, parents[_block(child)][0])


def _block(span: Event) -> tuple[int, str, int]:
    return span["pid"], span["args"]["block"], span["args"]["iteration"]
