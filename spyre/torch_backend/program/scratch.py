"""Placing intermediate results in one piece of scratch memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def place_scratch(
    uses: Sequence[Sequence[int]], sizes_bytes: Mapping[int, int]
) -> tuple[dict[int, int], int]:
    """Offset of every region in use, and the bytes of all together.

    ``uses``: regions every operation touches, in order. ``sizes_bytes``: of the regions to place.
    Regions that are in use at the same time do not overlap; each takes the lowest free place.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, regions in enumerate(uses):
        for region in regions:
            if region in sizes_bytes:
                first.setdefault(region, step)
                last[region] = step
    offsets: dict[int, int] = {}
    for region in sorted(first, key=lambda r: first[r]):
        living = sorted(
            (offsets[other], offsets[other] + sizes_bytes[other])
            for other in offsets
            if last[other] >= first[region]
        )
        offsets[region] = _lowest_gap(living, sizes_bytes[region])
    total = max((offsets[r] + sizes_bytes[r] for r in offsets), default=0)
    return offsets, total


def _lowest_gap(taken: Sequence[tuple[int, int]], size_bytes: int) -> int:
    place = 0
    for begin, end in taken:
        if begin - place >= size_bytes:
            return place
        place = max(place, end)
    return place
