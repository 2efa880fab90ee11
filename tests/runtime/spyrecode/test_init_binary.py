"""init_binary.bin and init.txt: round trips, and damage of every kind is found."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given, strategies as st

from spyre.errors import BundleError
from spyre.mlir.bundle_source import digest_of_files
from spyre.runtime.spyrecode.init_binary import (
    HEADER_BYTES,
    MAGIC,
    pack_bundle,
    parse_init_text,
    read_header,
    unpack_bundle,
)
from tests.examples import examples
from tests.runtime.spyrecode.samples import format_init_text

FILES = {"bundle.mlir": b"module {}\n" * 40, "sdsc_0.json": b"{}", "sdsc_1.json": bytes(1000)}
contents = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), st.binary())


@given(contents)
@examples(100)
def test_round_trip(files: dict[str, bytes]) -> None:
    data = pack_bundle(files)
    header = read_header(data[:128])
    assert len(data) == header.size_bytes
    assert len(data) % 128 == 0
    assert header.digest == digest_of_files(files)
    assert unpack_bundle(data) == files
    assert unpack_bundle(data + bytes(500)) == files, "what follows in program memory"


def test_equal_files_give_equal_bytes() -> None:
    assert pack_bundle(FILES) == pack_bundle(dict(reversed(FILES.items())))
    assert pack_bundle(FILES) != pack_bundle({**FILES, "sdsc_0.json": b"{ }"})


def test_names_count() -> None:
    other = {"bundle.mlir": FILES["bundle.mlir"], "sdsc_0.json": FILES["sdsc_1.json"]}
    assert digest_of_files(FILES) != digest_of_files(other)


def test_damage_is_found() -> None:
    data = pack_bundle(FILES)
    payload_end = HEADER_BYTES + read_header(data).payload_bytes
    rng = random.Random(3)
    for place in [*range(HEADER_BYTES), *rng.sample(range(HEADER_BYTES, payload_end), 60)]:
        wrong = bytearray(data)
        wrong[place] ^= 1 << rng.randrange(8)
        with pytest.raises(BundleError, match="SPY840"):
            unpack_bundle(bytes(wrong))


def test_the_padding_is_not_looked_at() -> None:
    data = pack_bundle(FILES)
    assert read_header(data).payload_bytes % 128
    assert unpack_bundle(data[:-1] + b"x") == FILES


@pytest.mark.parametrize("size", [0, 7, 127, 128, 140])
def test_truncation(size: int) -> None:
    with pytest.raises(BundleError) as caught:
        unpack_bundle(pack_bundle(FILES)[:size], "DIR/init_binary.bin")
    assert caught.value.code == "SPY840"
    assert str(caught.value.location) == "DIR/init_binary.bin at $"


def with_header(data: bytes, offset: int, form: str, value: int) -> bytes:
    """A header with one field changed and its checksum made right."""
    fields = bytearray(data[:124])
    struct.pack_into(form, fields, offset, value)
    return bytes(fields) + struct.pack("<I", zlib.crc32(bytes(fields))) + data[128:]


def test_a_later_version_is_refused() -> None:
    with pytest.raises(BundleError, match="SPY841"):
        read_header(with_header(pack_bundle(FILES), 8, "<I", 2))


@pytest.mark.parametrize("content_bytes", [0, 10, 1 << 20, 1 << 60])
def test_it_unpacks_to_the_size_it_says(content_bytes: int) -> None:
    data = with_header(pack_bundle(FILES), 56, "<Q", content_bytes)
    with pytest.raises(BundleError, match="cannot be unpacked"):
        unpack_bundle(data)


def test_another_digest_is_refused() -> None:
    data = with_header(pack_bundle(FILES), 16, "<Q", 5)
    with pytest.raises(BundleError, match="the program is not the header's"):
        unpack_bundle(data)


def test_bytes_of_others() -> None:
    with pytest.raises(BundleError, match="no program begins here"):
        read_header(bytes(128))
    assert pack_bundle({}).startswith(MAGIC)


class TestText:
    @given(st.binary(max_size=600))
    @examples(50)
    def test_round_trip(self, data: bytes) -> None:
        whole = data.ljust(-(-len(data) // 128) * 128, b"\0")
        assert parse_init_text(format_init_text(data)) == whole

    def test_lines_are_reversed(self) -> None:
        line = "00" * 126 + "0201"
        text = f"# a comment\n{line}\n\n{line.upper()}\n"
        assert parse_init_text(text.encode()) == (b"\1\2" + bytes(126)) * 2

    @pytest.mark.parametrize("line", ["00", "0" * 255, "0" * 258, "g" * 256, "é" * 128])
    def test_malformed(self, line: str) -> None:
        text = f"# first\n{'00' * 128}\n{line}\n".encode()
        with pytest.raises(BundleError) as caught:
            parse_init_text(text, "init.txt")
        assert caught.value.code == "SPY843"
        assert str(caught.value.location) == "init.txt:3:1"
