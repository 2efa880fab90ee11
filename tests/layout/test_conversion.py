"""Descriptors of copies: worked examples, text, JSON, and agreement with the transfer geometry."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest
from hypothesis import given

from spyre.errors import LaunchError, UnsupportedError
from spyre.layout import (
    HOST,
    AccessMap,
    Axis,
    DataConversionInfo,
    SpyreTensorLayout,
    contiguous_strides,
    conversion_info,
    device_coordinate,
    exact_geometry,
    host_coordinates_of_stick,
    occupied_sticks,
    transfer_geometry,
)
from tests.examples import examples
from tests.layout.conversion_reference import Array, walk
from tests.layout.copies_reference import host_positions
from tests.layout.transfer_cases import (
    ARRANGED,
    ARRANGED_SIZES,
    RAW,
    Case,
    arranged_case,
    cases,
    raw_case,
    tilings,
)

Ints = tuple[int, ...]


def default_info(
    sizes: tuple[int, ...], dtype: str = "float16", to_device: bool = True
) -> DataConversionInfo:
    layout = SpyreTensorLayout.from_host(sizes, dtype)
    return conversion_info(layout, sizes, contiguous_strides(sizes), dtype, to_device)


def nest(
    sizes: Ints, host_strides: Ints, device_strides: Ints, host_offset: int, device_offset: int
) -> AccessMap:
    """Sizes and strides innermost first, as a descriptor prints them."""
    axes = zip(sizes, zip(host_strides, device_strides, strict=True), strict=True)
    return AccessMap((host_offset, device_offset), tuple(Axis(*axis) for axis in axes)[::-1])


def fill(sizes: Ints, device_strides: Ints, device_offset: int) -> AccessMap:
    axes = zip(sizes, device_strides, strict=True)
    return AccessMap((device_offset,), tuple(Axis(n, (stride,)) for n, stride in axes)[::-1])


def sizes_of(walked: AccessMap) -> Ints:
    return tuple(axis.extent for axis in walked.axes[::-1])


def host_strides_of(walked: AccessMap) -> Ints:
    return tuple(axis.pitches[HOST] for axis in walked.axes[::-1])


def info_of(case: Case, to_device: bool) -> DataConversionInfo:
    extents = (case.sizes, case.layout_strides, case.dtype)
    return conversion_info(case.layout, *extents, to_device, case.strides, case.offset)


# --- examples ---------------------------------------------------------------------------------


def test_partial_sticks_of_a_matrix_are_a_nest_of_their_own():
    """The worked example of the runtime reference, §3: [100, 150] → [3, 100, 64]."""
    info = default_info((100, 150))
    assert info.nests == (
        nest((64, 100, 2), (1, 150, 64), (1, 64, 6400), 0, 0),
        nest((22, 100, 1), (1, 150, 64), (1, 64, 6400), 128, 12800),
    )
    assert info.zero_fill == (fill((42, 100, 1), (1, 64, 6400), 12822),)


def test_partial_sticks_of_a_cube():
    """The second worked example: [5, 7, 150], whose middle dim is the outermost on the device."""
    first, second = default_info((5, 7, 150)).nests
    assert first == nest((64, 5, 2, 7), (1, 1050, 64, 150), (1, 64, 320, 960), 0, 0)
    assert second == nest((22, 5, 1, 7), (1, 1050, 64, 150), (1, 64, 320, 960), 128, 640)


def test_both_directions_have_the_same_nests():
    into, out = default_info((5, 7, 150)), default_info((5, 7, 150), to_device=False)
    assert (into.host_format, into.device_format) == ("IEEE_FP16", "SEN169_FP16")
    assert out.nests == into.nests
    assert out.zero_fill == ()


def test_a_scalar_is_one_element():
    info = default_info(())
    assert info.nests == (nest((1, 1), (0, 0), (1, 64), 0, 0),)
    assert info.zero_fill == (fill((63, 1), (1, 64), 1),)


@pytest.mark.parametrize("sizes", [(0,), (3, 0), (2, 0, 70)])
def test_an_empty_tensor_has_no_nests(sizes: tuple[int, ...]):
    info = default_info(sizes)
    assert (info.nests, info.host_range) == ((), None)
    assert sum(fill.count for fill in info.zero_fill) == prod(info.device_size)


def test_a_transposed_host_keeps_the_device_side():
    layout = SpyreTensorLayout.from_host((100, 150), "float16")
    info = conversion_info(layout, (100, 150), (150, 1), "float32", True, (1, 100), 7)
    assert info.nests[1] == nest((22, 100, 1), (100, 1, 6400), (1, 64, 6400), 7 + 12800, 12800)
    assert info.host_format == "IEEE_FP32"
    assert info.host_range == (7, 7 + 14999)


def test_expanded_layouts_are_read_at_their_first_copy():
    case = raw_case("expanded")
    assert sizes_of(info_of(case, True).nests[0]) == (64, 1, 5)
    assert host_strides_of(info_of(case, True).nests[0]) == (1, 64, 0)
    assert sizes_of(info_of(case, False).nests[0]) == (64, 1, 1)


def test_digits_of_an_arrangement_are_axes():
    case = arranged_case("float32", "IEEE_FP32", "DL16_TO_FP32", (3, 64))
    (only,) = info_of(case, False).nests
    assert only == nest((4, 8, 3, 2, 1), (1, 8, 64, 4, 64), (1, 4, 32, 96, 192), 0, 0)


# --- against the geometry ---------------------------------------------------------------------


def expected_hosts(case: Case) -> Array:
    """Host element of every device element by the reference's rule; −1: padding."""
    geometry = transfer_geometry(case.layout, case.sizes, case.layout_strides)
    coordinates, valid = host_positions(geometry)
    offsets = np.full(case.layout.device_size, case.offset, np.int64)
    for coordinate, stride in zip(coordinates, case.strides, strict=True):
        offsets += coordinate * stride
    return np.where(valid, offsets, -1).reshape(-1)


def check_against_geometry(case: Case) -> None:
    """Every device element once on the way in, every host element once on the way out."""
    elements = prod(case.layout.device_size)
    into = walk(info_of(case, True), elements)
    assert (into.times == 1).all()
    expected = expected_hosts(case)
    np.testing.assert_array_equal(into.host, expected)
    out = walk(info_of(case, False), elements)
    assert ((out.host == expected) | (out.times == 0)).all()
    _, counts = np.unique(out.host[out.host >= 0], return_counts=True)
    assert (counts == 1).all()
    walked = (n for n, s in zip(case.sizes, case.strides, strict=True) if s)
    assert counts.size == prod(walked)


@examples(60)
@given(case=cases(most=1500))
def test_random_layouts(case: Case):
    check_against_geometry(case)


@pytest.mark.parametrize("name", RAW)
def test_raw_layouts(name: str):
    check_against_geometry(raw_case(name))


def check_identity(case: Case) -> None:
    """Each host element has one place: its host offset is Σ coordinate · stride."""
    device_size, stride_map = case.layout.device_size, case.layout.stride_map
    touched = walk(info_of(case, True), prod(device_size))
    held = np.flatnonzero(touched.host >= 0)
    coordinates = np.stack(np.unravel_index(held, device_size))
    assert np.array_equal(np.maximum(stride_map, 0) @ coordinates, touched.host[held])
    assert sorted(touched.host[held]) == list(range(prod(case.sizes)))
    element_bytes = case.layout.data_format.bits // 8
    for index in [(0,) * len(case.sizes), tuple(n - 1 for n in case.sizes)]:
        place = device_coordinate(case.layout, case.sizes, case.layout_strides, index)
        offset = sum(i * s for i, s in zip(index, case.layout_strides, strict=True))
        assert touched.host[place.byte_offset // element_bytes] == offset
        extents = (case.layout, case.sizes, case.layout_strides)
        assert occupied_sticks(*extents)[place.stick]
        if place.lane == 0:
            assert host_coordinates_of_stick(*extents, place.stick) == index


@pytest.mark.parametrize("name", [name for name in RAW if RAW[name][3][0]])
def test_places_follow_the_stride_map(name: str):
    check_identity(raw_case(name))


@pytest.mark.shared
def test_layouts_of_torch_spyres_tests(shared_dir):
    lines = (shared_dir / "bundles-refused/layouts.tsv").read_text().splitlines()
    for line in {line.partition("\t")[2] for line in lines}:
        sizes, strides, *device = (
            tuple(map(int, found.split(","))) for found in re.findall(r"\[([-\d, ]+)\]", line)[:4]
        )
        layout = SpyreTensorLayout(device[0], device[1], "SEN169_FP16")
        check_identity(Case(layout, "float16", sizes, strides, strides))


def test_folded_dims_have_to_continue_each_other_in_memory():
    case = raw_case("folded")
    layout, sizes = case.layout, case.sizes
    info = conversion_info(layout, sizes, case.strides, "float16", True, (256, 2))
    assert info.nests == (nest((64, 12), (2, 128), (1, 64), 0, 0),)
    with pytest.raises(LaunchError, match="SPY322]: the layout walks several host dims as one"):
        conversion_info(layout, sizes, case.strides, "float16", True, (1, 6))
    with pytest.raises(LaunchError, match="SPY322"):
        transfer_geometry(layout, sizes, (130, 1))


def test_folded_dims_have_to_keep_their_order_in_memory():
    layout = SpyreTensorLayout((2, 32, 64), (64, 128, 1), "SEN169_FP16")
    for strides in ((128, 512, 1), (1, 4, 32), (1024, 128, 2)):
        with pytest.raises(LaunchError, match="SPY322]: the layout walks several host dims as one"):
            conversion_info(layout, (4, 8, 128), (1024, 128, 1), "float16", False, strides)
    twice = conversion_info(layout, (4, 8, 128), (1024, 128, 1), "float16", False, (2048, 256, 2))
    assert twice.nests


@pytest.mark.parametrize("name", ["folded", "tiles within tiles"])
def test_layouts_without_single_host_dims_are_not_exact(name: str):
    case = raw_case(name)
    with pytest.raises(LaunchError, match=r"SPY322|SPY810"):
        exact_geometry(case.layout, case.sizes, case.strides)


@pytest.mark.parametrize(("dtype", "device", "arrangement"), ARRANGED)
@pytest.mark.parametrize("sizes", ARRANGED_SIZES)
def test_arrangements(dtype: str, device: str, arrangement: str, sizes: tuple[int, ...]):
    check_against_geometry(arranged_case(dtype, device, arrangement, sizes))


@examples(120)
@given(case=tilings())
def test_several_axes_for_one_host_dim(case: Case):
    check_against_geometry(case)


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device_size", "stride_map", "size", "found"),
    [
        ((2, 64), (128, 1), 192, "a step of 128"),
        ((2, 64), (32, 1), 96, "steps that hold 64"),
        ((1, 64), (-1, 2), 127, "a step of 2"),
        ((2, 64), (1, 1), 65, "steps that hold 2"),
        ((2, 64, 64), (1, 64, 1), 4096, "a step of 64 elements"),
    ],
)
def test_tilings_that_skip_or_repeat_elements(device_size, stride_map, size, found):
    layout = SpyreTensorLayout(device_size, stride_map, "SEN169_FP16")
    with pytest.raises(LaunchError, match="SPY810]: Invalid tiling for dimension 0") as caught:
        conversion_info(layout, (size,), (1,), "float16", True)
    assert found in str(caught.value)


def test_strides_that_do_not_divide():
    layout = SpyreTensorLayout((2, 64), (96, 3), "SEN169_FP16")
    with pytest.raises(LaunchError, match="Invalid device sizes and stride map for host sizes"):
        conversion_info(layout, (64,), (2,), "float16", True)


def test_a_host_tensor_whose_elements_share_memory_is_only_read():
    layout = SpyreTensorLayout.from_host((5, 64), "float16")
    extents = ((5, 64), (64, 1), "float16")
    info = conversion_info(layout, *extents, True, (0, 1))
    assert host_strides_of(info.nests[0]) == (1, 0, 0)
    with pytest.raises(LaunchError, match="SPY811]: elements along dim 0"):
        conversion_info(layout, *extents, False, (0, 1))


def test_ranks():
    layout = SpyreTensorLayout.from_host((5, 64), "float16")
    with pytest.raises(LaunchError, match="SPY322"):
        conversion_info(layout, (5, 64), (64, 1), "float16", True, (1,))


@pytest.mark.parametrize("arrangement", ["EXX2", "QFP8WT"])
def test_arrangements_without_a_defined_order(arrangement: str):
    layout = SpyreTensorLayout((1, 64), (64, 1), "SEN169_FP16", arrangement)
    with pytest.raises(UnsupportedError, match=f"SPY323.*{arrangement}"):
        conversion_info(layout, (64,), (1,), "float16", True)
