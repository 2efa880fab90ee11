"""``init_binary.bin``: the bytes of a bundle in program memory.

The card's program format is not public. This one is a header of one stick, followed by the bundle's
compressed files, padded to whole sticks. The digest in the header identifies the program. Runtime
reference §5 (for the simulator); docs/spyrecode.md lists the offsets.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping

import msgspec

from spyre.errors import BundleError, JsonLocation, SourceLocation
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.bundle_source import digest_of_files

INIT_BINARY_FILE = "init_binary.bin"
MAGIC = b"SPYREPRG"
VERSION = 1
HEADER_BYTES = STICK_BYTES
MAX_CONTENT_BYTES = 1 << 32
_FIELDS = struct.Struct("<8sII32sQQ")
"""magic, version, CRC-32 of the payload, digest, payload bytes, content bytes"""
_CHECK = struct.Struct("<I")
# Equal files have to give equal bytes, so the level is part of the format.
_COMPRESSION = 6


class ProgramHeader(msgspec.Struct, frozen=True):
    """The first stick of a binary.

    ``digest``: of the files, see `digest_of_files`. ``size_bytes``: of the whole binary, header and
    padding included. ``payload_bytes``: size of the compressed files; ``content_bytes``: of the
    uncompressed ones.
    """

    digest: str
    size_bytes: int
    payload_bytes: int
    content_bytes: int
    payload_crc: int


def pack_bundle(files: Mapping[str, bytes]) -> bytes:
    """The binary of a bundle's files, by name; equal files give equal bytes.

    Equal under one version of zlib: another one may compress otherwise, the digest stays.
    """
    content = msgspec.msgpack.encode({name: files[name] for name in sorted(files)})
    payload = zlib.compress(content, _COMPRESSION)
    header = format_header(digest_of_files(files), payload, len(content))
    return header + payload.ljust(_whole_sticks(len(payload)), b"\0")


def format_header(digest: str, payload: bytes = b"", content_bytes: int = 0) -> bytes:
    """The header stick of a binary; without ``payload`` it names a program that is known."""
    fields = _FIELDS.pack(
        MAGIC, VERSION, zlib.crc32(payload), bytes.fromhex(digest), len(payload), content_bytes
    ).ljust(HEADER_BYTES - _CHECK.size, b"\0")
    return fields + _CHECK.pack(zlib.crc32(fields))


def holds_program(data: bytes) -> bool:
    """True if a binary is one of this compiler's, whole or not."""
    return data.startswith(MAGIC)


def read_header(data: bytes, file: str = INIT_BINARY_FILE) -> ProgramHeader:
    """The header that the first 128 bytes of ``data`` are.

    BundleError SPY840 when they are none, SPY841 when it is of a later version.
    """
    stick = bytes(data[:HEADER_BYTES])
    if len(stick) < HEADER_BYTES or not stick.startswith(MAGIC):
        raise _damaged("no program begins here", file, MAGIC.decode(), repr(stick[:8]))
    fields, (check,) = stick[: -_CHECK.size], _CHECK.unpack(stick[-_CHECK.size :])
    if zlib.crc32(fields) != check:
        raise _damaged("the header's checksum is wrong", file)
    _, version, crc, digest, payload_bytes, content_bytes = _FIELDS.unpack_from(fields)
    if version != VERSION:
        message = "the program binary is newer than this reader"
        raise BundleError(
            "SPY841", message, JsonLocation(file), expected=f"version {VERSION}", found=f"{version}"
        )
    size_bytes = HEADER_BYTES + _whole_sticks(payload_bytes)
    return ProgramHeader(digest.hex(), size_bytes, payload_bytes, content_bytes, crc)


def unpack_bundle(data: bytes, file: str = INIT_BINARY_FILE) -> dict[str, bytes]:
    """Return the files that `pack_bundle` packed; bytes of ``data`` after the binary are ignored.

    BundleError SPY840 if they differ from the header's digest, and SPY841.
    """
    header = read_header(data, file)
    payload = bytes(data[HEADER_BYTES : HEADER_BYTES + header.payload_bytes])
    if len(payload) < header.payload_bytes or zlib.crc32(payload) != header.payload_crc:
        found = f"{len(payload)} bytes, or others"
        raise _damaged("the program is not whole", file, f"{header.payload_bytes} bytes", found)
    try:
        files = msgspec.msgpack.decode(_decompress(payload, header), type=dict[str, bytes])
    except (zlib.error, msgspec.DecodeError) as error:
        raise _damaged(f"the program cannot be unpacked: {error}", file) from error
    if digest_of_files(files) != header.digest:
        raise _damaged(
            "the program is not the header's", file, header.digest, digest_of_files(files)
        )
    return files


def _decompress(payload: bytes, header: ProgramHeader) -> bytes:
    """Decompress the number of bytes in the header; zlib.error for more or fewer bytes."""
    if header.content_bytes > MAX_CONTENT_BYTES:
        raise zlib.error(f"{header.content_bytes} bytes are more than a program has")
    # Decompressing one byte more is enough to detect a longer content of any length.
    stream = zlib.decompressobj()
    content = stream.decompress(payload, header.content_bytes + 1)
    if len(content) != header.content_bytes or not stream.eof:
        raise zlib.error(f"{len(content)} bytes instead of {header.content_bytes}")
    return content


def _whole_sticks(size_bytes: int) -> int:
    return -(-size_bytes // STICK_BYTES) * STICK_BYTES


def _damaged(reason: str, file: str, expected: str = "", found: str = "") -> BundleError:
    """SPY840."""
    return BundleError("SPY840", reason, JsonLocation(file), expected=expected, found=found)


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
