"""Damages of a file: contents that are cut, garbled or of another kind, or no regular file at all.

A damage has a name and a function of a random generator, the path and the old content. `CHANGES`
and `PLACES` apply to every kind of file, `qa.mutations` to text files too.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qa.mutations import mutate

Change = Callable[[random.Random, bytes], bytes]
Damage = Callable[[random.Random, Path, bytes], None]


def _flipped(rng: random.Random, content: bytes, first: int, last: int) -> bytes:
    data = bytearray(content)
    if data:
        data[min(rng.randrange(first, max(first + 1, last)), len(data) - 1)] ^= 1 << rng.randrange(
            8
        )
    return bytes(data)


def _garbled(rng: random.Random, content: bytes, count: int) -> bytes:
    data = bytearray(content)
    for _ in range(count if data else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def _without_piece(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + content[at + rng.randint(1, 200) :]


def _pieces_swapped(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[at:] + content[:at]


def _sector_zeroed(rng: random.Random, content: bytes) -> bytes:
    """Zero a sector of 512 bytes, as after a power failure before it was written."""
    at = rng.randrange(0, len(content) + 1, 512)
    return content[:at] + bytes(min(512, len(content) - at)) + content[at + 512 :]


CHANGES: dict[str, Change] = {
    "empty": lambda rng, c: b"",
    "one byte": lambda rng, c: c[:1],
    "last byte missing": lambda rng, c: c[:-1],
    "last sector missing": lambda rng, c: c[: max(0, (len(c) - 1) // 512 * 512)],
    "half": lambda rng, c: c[: len(c) // 2],
    "cut": lambda rng, c: c[: rng.randrange(len(c) + 1)],
    "first byte missing": lambda rng, c: c[1:],
    "zeros": lambda rng, c: bytes(len(c)),
    "ones": lambda rng, c: b"\xff" * len(c),
    "noise": lambda rng, c: rng.randbytes(len(c)),
    "a sector of zeros": _sector_zeroed,
    "bit of the head": lambda rng, c: _flipped(rng, c, 0, 16),
    "bit near the head": lambda rng, c: _flipped(rng, c, 16, 128),
    "bit": lambda rng, c: _flipped(rng, c, 0, len(c)),
    "bit of the end": lambda rng, c: _flipped(rng, c, len(c) - 64, len(c)),
    "three bytes": lambda rng, c: _garbled(rng, c, 3),
    "forty bytes": lambda rng, c: _garbled(rng, c, 40),
    "piece missing": _without_piece,
    "pieces swapped": _pieces_swapped,
    "more at the end": lambda rng, c: c + rng.randbytes(rng.randint(1, 100)),
    "zeros at the end": lambda rng, c: c + bytes(1000),
    "twice": lambda rng, c: c + c,
    "byte order mark": lambda rng, c: b"\xef\xbb\xbf" + c,
    "line ends of Windows": lambda rng, c: c.replace(b"\n", b"\r\n"),
    "deep nesting": lambda rng, c: rng.choice((b"[", b"{", b'{"a":', b"(", b"((")) * 100_000,
    "text of another encoding": lambda rng, c: c.decode("latin-1").encode("utf-16"),
    "a number": lambda rng, c: b"12345\n",
    "null": lambda rng, c: b"null",
    "an archive": lambda rng, c: b"PK\x03\x04" + rng.randbytes(200),
}
"""Functions that replace the content of a file, by name."""


def _removed(rng: random.Random, path: Path, content: bytes) -> None:
    path.unlink()


def _directory(rng: random.Random, path: Path, content: bytes) -> None:
    path.unlink()
    path.mkdir()


def _pipe(rng: random.Random, path: Path, content: bytes) -> None:
    path.unlink()
    os.mkfifo(path)


def _link_to(target: str) -> Damage:
    def damage(rng: random.Random, path: Path, content: bytes) -> None:
        path.unlink()
        path.symlink_to(target or path.name)

    return damage


def _sparse(rng: random.Random, path: Path, content: bytes) -> None:
    """Extend the file to 8 TiB, more than a host's memory; the hole takes no room on the disk."""
    os.truncate(path, 1 << 43)


PLACES: dict[str, Damage] = {
    "missing": _removed,
    "a directory": _directory,
    "a pipe": _pipe,
    "a link to nothing": _link_to("/nonexistent/file"),
    "a link to itself": _link_to(""),
    "a link to an empty device": _link_to("/dev/null"),
    "8 TiB of zeros": _sparse,
}
"""Functions that replace the file by something else or remove it, by name."""

_MUTATED = ("mutated", "mutated again", "mutated once more")


def damages_of(path: Path) -> tuple[str, ...]:
    """Names of the damages for a file."""
    text = path.suffix in (".json", ".mlir", ".toml", ".journal")
    return (*CHANGES, *PLACES, *(_MUTATED if text else ()))


@contextmanager
def damaged(path: Path, name: str, rng: random.Random) -> Iterator[None]:
    """Apply damage ``name`` to ``path`` within the block, and restore the file afterwards."""
    content = path.read_bytes()
    try:
        _damage(path, name, rng, content)
        yield
    finally:
        _remove(path)
        path.write_bytes(content)


def _damage(path: Path, name: str, rng: random.Random, content: bytes) -> None:
    if name in CHANGES:
        path.write_bytes(CHANGES[name](rng, content))
    elif name in _MUTATED:
        path.write_bytes(mutate(rng, path.name, content))
    else:
        PLACES[name](rng, path, content)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
