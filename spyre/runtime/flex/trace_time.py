"""Times of a Chrome trace: microseconds, from which Perfetto makes whole nanoseconds again."""

from __future__ import annotations

from math import nextafter


def microseconds(time_ns: int) -> float:
    """The number that Perfetto reads as ``time_ns``, from 0 to a quarter of a year (2**53).

    It multiplies by 1000 and rounds. Past 2**42 microseconds numbers are almost a nanosecond apart
    and products half of one below 2**52: the nearest number may have a product that is rounded up.
    """
    found = time_ns / 1000
    return found if found * 1000 - time_ns < 0.5 else nextafter(found, 0.0)
