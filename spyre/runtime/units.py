"""Numbers for people: bytes, counts, times."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("", "k", "M", "G", "T")
_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def format_bytes(size_bytes: float) -> str:
    """``1536`` → ``1.5 KiB``; nothing is a dash."""
    whole = round(size_bytes)
    return " ".join(_scaled(whole, 1024, _BINARY)) if whole else "-"


def format_count(count: int) -> str:
    """``1500000`` → ``1.5M``."""
    return "".join(_scaled(count, 1000, _DECIMAL))


def format_ns(time_ns: float | None) -> str:
    """``1500`` → ``1.5 µs``; an unknown time is a dash."""
    if time_ns is None:
        return "-"
    whole = round(time_ns)
    scale, unit = next((s, u) for s, u in _TIMES if whole >= s or s == 1)
    return f"{_significant(whole / scale)} {unit}"


def _scaled(number: int, base: int, units: tuple[str, ...]) -> tuple[str, str]:
    value, index = float(number), 0
    while value >= base and index < len(units) - 1:
        value /= base
        index += 1
    return _significant(value), units[index]


def _significant(value: float) -> str:
    """Three digits, without trailing zeros behind the point."""
    if value >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.{2 if value < 10 else 1}f}".rstrip("0").removesuffix(".")
