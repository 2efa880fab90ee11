"""Every number format through every table that depends on it, all of them made from its row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spyre.diagnose.number_modes import UlpSize
from spyre.dtypes import (
    FORMATS,
    HOST_DTYPES,
    INTEGER_STORAGE,
    NO_CODE,
    DataFormat,
    bytes_to_codes,
    codes_to_bytes,
    decode_device,
    encode_device,
)
from spyre.errors import UnsupportedError
from spyre.frontend.copies import PAIRS
from spyre.frontend.formats import DataFormats
from spyre.hw import plan_table as tb
from spyre.hw.device import transfer
from spyre.hw.kernels.offset_vectors import VALUES
from spyre.hw.numerics import Numerics
from spyre.hw.ops.elementwise import FLOATS
from spyre.hw.ops.table import OPS
from spyre.runtime.compare.outputs import EXACT, default_tolerance
from spyre.torch_backend.device.dtypes import DTYPES, PARTS
from spyre.torch_backend.eager import dispatch
from spyre.torch_backend.tensors.allocation import TYPE_CODES

STORED = [row for row in FORMATS.values() if row.stored]
formats = pytest.mark.parametrize("row", FORMATS.values(), ids=FORMATS)
stored = pytest.mark.parametrize("row", STORED, ids=lambda row: row.name)


@formats
def test_the_row_is_complete(row: DataFormat):
    assert row.is_float == (row.precision[0] > 0) or not row.stored
    if not row.stored:
        assert (row.plan_code, row.transfer_code, row.host_dtype) == (NO_CODE, NO_CODE, "")
        return
    assert row.elements_per_stick * row.bits == 1024
    assert np.dtype(row.code_dtype).itemsize == max(row.bits // 8, 1)
    assert not row.computed or (row.plan_code >= 0 and row.transfer_code >= 0)
    assert not row.merges_nan or row.tolerance is not None


def test_numbers_in_tables_are_unambiguous():
    """Formats share a plan code with none, a transfer code only if copies treat them alike."""
    variants = [tb.HALF, tb.DL16_TRUNC, tb.DL16_EVEN]
    codes = [row.plan_code for row in FORMATS.values() if row.plan_code != NO_CODE]
    assert len({*codes, *variants}) == len(codes) + len(variants)
    packed = [row for row in STORED if row.plan_code >= tb.FIRST_PACKED]
    assert all(row.bits <= 8 for row in packed)
    assert len(VALUES) == len(packed)
    widths: dict[int, set[object]] = {}
    for row in STORED:
        if row.transfer_code != NO_CODE:
            kind = row.name if row.computed else row.bits, row.name == "SENUINT32"
            widths.setdefault(row.transfer_code, set()).add(kind)
    assert all(len(kinds) == 1 for kinds in widths.values())


@stored
def test_the_codec_and_the_packing(row: DataFormat):
    codes = np.arange(min(1 << row.bits, 1 << 16)).astype(np.uint8 if row.bits <= 8 else np.uint16)
    if row.bits == 4:
        codes = ((codes.astype(np.int8) ^ 8) - 8).astype(np.int8)
    codes = codes.astype(row.code_dtype)
    assert np.array_equal(bytes_to_codes(codes_to_bytes(codes, row.name), row.name), codes)
    values = decode_device(codes, row.name)
    again = decode_device(encode_device(values, row.name), row.name)
    assert np.array_equal(again, values, equal_nan=values.dtype.kind == "f")


@stored
def test_packed_kernels_decode_as_the_codec(row: DataFormat):
    if row.plan_code < tb.FIRST_PACKED:
        return
    codes = np.arange(1 << row.bits).astype(np.uint8)
    kept = codes if row.bits == 8 else ((codes.astype(np.int8) ^ 8) - 8)
    values = decode_device(kept.view(row.code_dtype), row.name)
    found = VALUES[row.plan_code - tb.FIRST_PACKED, : codes.size]
    assert np.array_equal(found, values.astype(np.float32), equal_nan=True)


@stored
@pytest.mark.parametrize("dtype", HOST_DTYPES)
def test_copies_take_a_format_or_refuse_it(row: DataFormat, dtype: str):
    """Floats to computed floats, integers and bool to integers, 8-bit floats to themselves."""
    host = HOST_DTYPES[dtype]
    if not FORMATS[host.device_format].stored:
        return
    floats = host.transfer_code < INTEGER_STORAGE
    own = FORMATS[host.device_format]
    if row.copied_only or own.copied_only:
        allowed = row is own
    elif row.computed:
        allowed = floats
    else:
        allowed = row.transfer_code != NO_CODE and (not floats or dtype == "bool")
    table = np.zeros(tb.WORDS, np.int64)
    if allowed:
        transfer._write_formats(table, row.name, dtype, Numerics())
    else:
        with pytest.raises(UnsupportedError, match="SPY528"):
            transfer._write_formats(table, row.name, dtype, Numerics())


@stored
def test_tolerance_and_units(row: DataFormat):
    found = default_tolerance("float32", row.name)
    assert (found.merged_nan, found.rtol >= 2**-9) == (row.merges_nan, row.tolerance is not None)
    assert default_tolerance("int32", row.name) is EXACT
    (unit,) = UlpSize(row.name, Numerics(), Numerics()).size(np.ones(1))
    assert unit == (2.0 ** -row.precision[0] if row.is_float else 1.0)


def test_formats_of_operations():
    """Operations over all floats take the computed formats, others name formats that exist."""
    assert set(FLOATS) == {row.name for row in FORMATS.values() if row.computed}
    named = {name for op in OPS.values() for name in (*op.formats, *op.result_formats)}
    assert named <= {row.name for row in STORED}


def test_torch_dtypes():
    ours = {row.name for row in HOST_DTYPES.values() if not row.name.startswith("q")}
    assert set(DTYPES) == ours
    assert all(isinstance(dtype, torch.dtype) for dtype in DTYPES.values())
    assert set(TYPE_CODES) == set(DTYPES.values()) | set(PARTS)
    assert (torch.float16, torch.bfloat16, torch.float32) == dispatch.FLOATS
    assert {row.host_dtype for row in FORMATS.values()} - {""} <= set(DTYPES)


def test_the_adapter_knows_every_format():
    assert {member.name for member in DataFormats} - {"INVALID"} == set(FORMATS)
    assert {name for pair in PAIRS for name in pair} <= set(FORMATS)
