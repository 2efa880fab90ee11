"""Compiled host ↔ device copies against the reference of :mod:`spyre.layout`, byte for byte."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.dtypes import decode_dl16, find_host_dtype
from spyre.errors import LaunchError, UnsupportedError
from spyre.hw import transfer_table as tt
from spyre.hw.device.threads import shared_pool
from spyre.hw.device.transfer import plan_transfer
from spyre.hw.numerics import Numerics
from spyre.layout import (
    SpyreTensorLayout,
    contiguous_strides,
    conversion_info,
)
from tests.examples import examples
from tests.hw.device.host_views import HostView, copy_to_device, copy_to_host
from tests.hw.harness import Array
from tests.hw.strategies import seeds, thread_counts
from tests.layout.copies_reference import device_to_host_reference, host_to_device_reference
from tests.layout.transfer_cases import (
    ARRANGED,
    ARRANGED_SIZES,
    DTYPES,
    RAW,
    Case,
    arranged_case,
    cases,
    raw_case,
    tilings,
)

GUARD = 128


def view_of(case: Case, storage: Array) -> HostView:
    return HostView(storage, case.dtype, case.sizes, case.layout_strides, case.strides, case.offset)


def is_bfloat16_nan(codes: Array) -> Array:
    return np.asarray((codes & 0x7FFF) > 0x7F80)


def random_storage(case: Case, rng: np.random.Generator) -> Array:
    """Any bits for integers and bit patterns; floats of all magnitudes with specials."""
    dtype = np.dtype(find_host_dtype(case.dtype).storage_dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, case.elements).astype(bool)
    if dtype.kind == "f":
        values = rng.standard_normal(case.elements) * np.exp2(rng.integers(-20, 15, case.elements))
        values[rng.random(case.elements) < 0.05] = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan])
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    bits = rng.integers(0, 1 << 63, case.elements).astype(dtype)
    return np.where(is_bfloat16_nan(bits), 0x7FC0, bits) if case.dtype == "bfloat16" else bits


def check(case: Case, numerics: Numerics, threads: int, seed: int) -> None:
    """Both directions; bytes around the tensor and host elements outside of it stay."""
    rng = np.random.default_rng(seed)
    rules = numerics.transfer_rules
    storage = random_storage(case, rng)
    size = case.layout.device_bytes
    memory = rng.integers(0, 256, size + 2 * GUARD).astype(np.uint8)
    before = memory.copy()
    device = memory[GUARD : GUARD + size]
    pool = shared_pool(threads)
    arguments = (case.offset, case.layout, case.sizes, case.layout_strides, case.dtype)
    copy_to_device(view_of(case, storage), case.layout, device, numerics, pool)
    expected = host_to_device_reference(storage, *arguments, host_strides=case.strides, rules=rules)
    assert_same(device, expected, case)
    assert np.array_equal(memory[:GUARD], before[:GUARD])
    assert np.array_equal(memory[GUARD + size :], before[GUARD + size :])
    device[:] = random_device(case, rng, expected)
    target = random_storage(case, rng)
    wanted = device_to_host_reference(
        device, target, *arguments, host_strides=case.strides, rules=rules
    )
    copy_to_host(view_of(case, target), case.layout, device, numerics, pool)
    assert_same(target, wanted, case)


def random_device(case: Case, rng: np.random.Generator, transferred: Array) -> Array:
    """Any device bytes; for an expanded tensor, whose copies must agree, the transferred ones."""
    if 0 in case.layout.stride_map:
        return transferred
    codes = rng.integers(0, 1 << 16, case.layout.device_bytes // 2).astype(np.uint16)
    return codes.view(np.uint8)


def assert_same(found: Array, expected: Array, case: Case) -> None:
    if found.dtype.kind == "f":
        np.testing.assert_array_equal(found, expected, str(case))
        nan = np.isnan(found)
        assert np.array_equal(np.signbit(found[~nan]), np.signbit(expected[~nan])), case
    else:
        wrong = found != expected
        if case.dtype == "bfloat16" and found.dtype == np.uint16:
            wrong &= ~(is_bfloat16_nan(found) & is_bfloat16_nan(expected))
        bad = np.flatnonzero(wrong)
        assert not bad.size, (case, bad[:5], found[bad[:5]], expected[bad[:5]])


# --- random layouts ---------------------------------------------------------------------------


ARRANGED_MODES = (
    Numerics(),
    Numerics("ieee"),
    Numerics("dl16-chunk"),
    Numerics(dma_rounding="trunc", saturate=True),
)
modes = st.one_of(
    st.sampled_from([Numerics(), Numerics("ieee"), Numerics("ieee", bfloat16_rounding="even")]),
    st.builds(
        Numerics,
        ninf_to_host=st.sampled_from(["inf", "nan"]),
        dma_rounding=st.sampled_from(["away", "trunc", "even"]),
        saturate=st.booleans(),
        bfloat16_rounding=st.sampled_from(["away", "trunc", "even"]),
    ),
)


@examples(250)
@given(case=cases(), numerics=modes, threads=thread_counts, seed=seeds)
def test_random_layouts(case: Case, numerics: Numerics, threads: int, seed: int):
    check(case, numerics, threads, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@examples(8)
@given(data=st.data(), seed=seeds)
def test_every_dtype(dtype: str, data: st.DataObject, seed: int):
    check(data.draw(cases(dtype)), Numerics(), 1, seed)


@pytest.mark.parametrize(("dtype", "device", "arrangement"), ARRANGED)
@pytest.mark.parametrize("sizes", ARRANGED_SIZES)
def test_arrangements(dtype: str, device: str, arrangement: str, sizes: tuple[int, ...]):
    case = arranged_case(dtype, device, arrangement, sizes)
    for seed, numerics in enumerate(ARRANGED_MODES):
        check(case, numerics, 1, seed)


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool"])
def test_raw_layouts(name: str, dtype: str):
    for seed in range(3):
        check(raw_case(name, dtype), Numerics(), 1, seed)


def test_large_copies_on_threads():
    """Big enough for several threads, with ragged ends in every dim."""
    sizes = (37, 11, 1000)
    layout = SpyreTensorLayout.from_host(sizes, "float16")
    strides = contiguous_strides(sizes)
    for threads in (1, 2, 3):
        check(Case(layout, "float16", sizes, strides, strides), Numerics(), threads, 5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("sizes", [(128, 48), (150, 32), (70, 20), (64, 1040)])
def test_sticks_along_the_first_dim(dtype: str, sizes: tuple[int, int]):
    """The layout of weights: host neighbours begin neighbouring sticks, in blocks of 16 or not."""
    rows, columns = sizes
    default = SpyreTensorLayout.from_host(sizes, dtype)
    lanes = default.elements_per_stick
    device_size = (-(-rows // lanes), columns, lanes)
    layout = SpyreTensorLayout(device_size, (columns * lanes, 1, columns), default.device_dtype)
    strides = contiguous_strides(sizes)
    for seed, numerics in enumerate((*ARRANGED_MODES, Numerics())):
        check(Case(layout, dtype, sizes, strides, strides), numerics, 2, seed)
        check(Case(layout, dtype, sizes, strides, (columns + 3, 1)), numerics, 1, seed)


def test_all_float16_values_survive_the_way_that_dl16_can_hold():
    values = np.arange(65536).astype(np.uint16).view(np.float16)
    finite = values[np.isfinite(values)]
    layout = SpyreTensorLayout.from_host((finite.size,), "float16")
    view = HostView.dense(finite.copy(), "float16", (finite.size,), (1,))
    device = np.zeros(layout.device_bytes, np.uint8)
    copy_to_device(view, layout, device, Numerics(), shared_pool(1))
    codes = device.view(np.uint16)[: finite.size]
    expected = decode_dl16(codes)
    target = HostView.dense(np.zeros_like(finite), "float16", (finite.size,), (1,))
    copy_to_host(target, layout, device, Numerics(), shared_pool(1))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(target.storage, expected.astype(np.float16))


@pytest.mark.parametrize("sizes", [(65536,), (1024, 64), (64, 1024), (1170, 56)])
def test_all_float16_codes_stay_in_mode_ieee_but_for_signalling_nans(sizes: tuple[int, ...]):
    """Those become quiet, as in a conversion to float32; whole sticks are copied as bits."""
    count, strides = prod(sizes), contiguous_strides(sizes)
    codes = np.arange(count).astype(np.uint16)
    quiet = np.where((codes & 0x7FFF) > 0x7C00, codes | 0x200, codes)
    layout, numerics = SpyreTensorLayout.from_host(sizes, "float16"), Numerics("ieee")
    device = np.zeros(layout.device_bytes, np.uint8)
    source = HostView.dense(codes.view(np.float16), "float16", sizes, strides)
    copy_to_device(source, layout, device, numerics, shared_pool(1))
    arguments = quiet.view(np.float16), 0, layout, sizes, strides, "float16"
    expected = host_to_device_reference(*arguments, rules=numerics.transfer_rules)
    assert np.array_equal(device, expected)
    stored = device.view(np.uint16)
    stored[((stored & 0x7FFF) > 0x7C00) & (stored & 0x1FF > 0)] &= 0xFDFF
    target = HostView.dense(np.zeros(count, np.float16), "float16", sizes, strides)
    copy_to_host(target, layout, device, numerics, shared_pool(1))
    assert np.array_equal(target.storage.view(np.uint16), quiet)


@pytest.mark.parametrize("sizes", [(0,), (0, 64), (3, 0), (2, 0, 70)])
def test_empty_tensors_touch_nothing(sizes: tuple[int, ...]):
    layout = SpyreTensorLayout.from_host(sizes, "float16")
    memory = np.full(256, 0xA5, np.uint8)
    storage = np.full(4, 7, np.float16)
    view = HostView.dense(storage, "float16", sizes, contiguous_strides(sizes))
    copy_to_device(view, layout, memory[128:], Numerics(), shared_pool(1))
    copy_to_host(view, layout, memory[128:], Numerics(), shared_pool(1))
    assert (memory == 0xA5).all()
    assert (storage == 7).all()


def test_an_empty_host_tensor_leaves_zeros_in_a_padded_layout():
    layout = SpyreTensorLayout((3, 2, 64), (-1, -1, -1), "SEN169_FP16")
    memory = np.full(layout.device_bytes + 128, 0xA5, np.uint8)
    view = HostView.dense(np.zeros(0, np.float16), "float16", (0,), (1,))
    copy_to_device(view, layout, memory, Numerics(), shared_pool(1))
    assert not memory[: layout.device_bytes].any()
    assert (memory[layout.device_bytes :] == 0xA5).all()
    copy_to_host(view, layout, memory, Numerics(), shared_pool(1))


# --- refusals ---------------------------------------------------------------------------------


def test_a_short_storage_is_refused():
    layout = SpyreTensorLayout.from_host((4, 64), "float16")
    view = HostView.dense(np.zeros(255, np.float16), "float16", (4, 64), (64, 1))
    with pytest.raises(LaunchError, match="SPY324"):
        copy_to_device(view, layout, np.zeros(512, np.uint8), Numerics(), shared_pool(1))


def test_too_few_device_bytes_are_refused():
    layout = SpyreTensorLayout.from_host((4, 64), "float16")
    view = HostView.dense(np.zeros(256, np.float16), "float16", (4, 64), (64, 1))
    with pytest.raises(LaunchError, match="SPY324"):
        copy_to_host(view, layout, np.zeros(511, np.uint8), Numerics(), shared_pool(1))


@pytest.mark.parametrize(
    ("host", "device"),
    [
        ("float16", "IEEE_INT32"),
        ("int64", "SEN169_FP16"),
        ("int32", "SEN143_FP8"),
        ("uint8", "SEN143_FP8"),
        ("float8_e4m3fn", "SEN152_FP8"),
        ("float8_e4m3fn", "SENINT8"),
    ],
)
def test_conversions_between_kinds_are_refused(host: str, device: str):
    lanes = {"IEEE_INT32": 32, "SEN169_FP16": 64}.get(device, 128)
    layout = SpyreTensorLayout((1, lanes), (lanes, 1), device)
    storage: Any = np.zeros(lanes, find_host_dtype(host).storage_dtype)
    view = HostView.dense(storage, host, (lanes,), (1,))
    with pytest.raises(UnsupportedError, match="SPY528"):
        copy_to_device(view, layout, np.zeros(128, np.uint8), Numerics(), shared_pool(1))


def test_more_padded_dims_than_a_table_holds_are_refused_or_right():
    """Seven device dims that hold one step each of two."""
    layout = SpyreTensorLayout((2,) * 7 + (1, 64), (-1,) * 8 + (1,), "SEN169_FP16")
    case = Case(layout, "float16", (64,), (1,), (1,))
    try:
        check(case, Numerics(), 1, 0)
    except UnsupportedError as error:
        assert error.code == "SPY529"  # noqa: PT017


def test_plans_are_kept_per_layout_strides_dtype_numerics_and_direction():
    layout = SpyreTensorLayout.from_host((4, 100), "float16")
    extents = ((4, 100), (100, 1), (100, 1))
    first = plan_transfer(layout, *extents, "float16", Numerics(), True)
    again = plan_transfer(replace(layout), *extents, "float16", Numerics(), True)
    assert first is again
    assert first.info == conversion_info(layout, (4, 100), (100, 1), "float16", True)
    other = plan_transfer(layout, *extents, "float16", Numerics(), False)
    assert not other.info.to_device


def test_partial_sticks_share_the_row_of_the_whole_ones():
    """Two nests and a zero fill, executed as one row: each host line is touched once."""
    layout = SpyreTensorLayout.from_host((100, 150), "float16")
    extents = ((100, 150), (150, 1), (150, 1))
    plan = plan_transfer(layout, *extents, "float16", Numerics(), True)
    assert (len(plan.info.nests), len(plan.info.zero_fill)) == (2, 1)
    assert plan.table[tt.ROWS] == 1
    words = plan.table[tt.HEAD_WORDS :]
    assert [words[k] for k in (tt.COUNT, tt.FILL)] == [64, 0]
    assert [words[k] for k in (tt.TAIL_AT, tt.TAIL_COUNT, tt.TAIL_FILL)] == [2, 22, 42]


def test_negative_host_strides():
    layout = SpyreTensorLayout.from_host((3, 70), "float16")
    storage = np.arange(210).astype(np.float16)
    device = np.zeros(layout.device_bytes, np.uint8)
    view = HostView(storage, "float16", (3, 70), (70, 1), (70, -1), 69)
    copy_to_device(view, layout, device, Numerics(), shared_pool(1))
    target = HostView.dense(np.zeros(210, np.float16), "float16", (3, 70), (70, 1))
    copy_to_host(target, layout, device, Numerics(), shared_pool(1))
    np.testing.assert_array_equal(target.storage.reshape(3, 70), storage.reshape(3, 70)[:, ::-1])
    short = HostView(storage, "float16", (3, 70), (70, 1), (70, -1), 68)
    with pytest.raises(LaunchError, match="SPY324"):
        copy_to_device(short, layout, device, Numerics(), shared_pool(1))


@examples(40)
@given(data=st.data(), seed=seeds)
def test_padded_tilings(data: st.DataObject, seed: int):
    """One host dim on several device axes with room to spare, beside padded rows."""
    check(data.draw(tilings()), Numerics(), 2, seed)
