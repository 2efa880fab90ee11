"""``init.txt``: program bytes as text, as older directories have them.

256 hexadecimal digits per line are 128 bytes in reversed order; lines that begin with ``#`` are
comments. Runtime reference §5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from spyre.errors import BundleError, SourceLocation
from spyre.hw.spec import STICK_BYTES

_DIGITS = re.compile(rb"[0-9a-fA-F]*")


def parse_init_text(data: bytes, file: str = "init.txt") -> bytes:
    """The bytes that the text spells, whole sticks. BundleError SPY843 with the line."""
    return b"".join(_sticks(data, file))


def _sticks(data: bytes, file: str) -> Iterator[bytes]:
    for number, line in enumerate(data.splitlines(), 1):
        digits = line.strip()
        if not digits or digits.startswith(b"#"):
            continue
        if len(digits) != 2 * STICK_BYTES or not _DIGITS.fullmatch(digits):
            raise BundleError(
                "SPY843",
                "a line of the program text is malformed",
                SourceLocation(file, number, 1),
                expected=f"{2 * STICK_BYTES} hexadecimal digits",
                found=f"{len(digits)} characters",
            )
        yield bytes.fromhex(digits.decode())[::-1]


def format_init_text(data: bytes) -> bytes:
    """The text of ``data``, zeros added up to a whole stick."""
    lines = (
        data[k : k + STICK_BYTES].ljust(STICK_BYTES, b"\0")[::-1].hex()
        for k in range(0, len(data), STICK_BYTES)
    )
    return "".join(f"{line}\n" for line in lines).encode()
