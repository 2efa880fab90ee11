"""Tensor layouts: the worked examples, the stride identity, and transfers of real tensors."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.dtypes import NumericRules, decode_device, encode_device
from spyre.errors import LaunchError, UnsupportedError
from spyre.layout import (
    SpyreTensorLayout,
    arrangement_positions,
    contiguous_strides,
    device_coordinate,
    host_coordinate_of_offset,
    storage_bytes,
    transfer_geometry,
)
from tests.conftest import accepted_files
from tests.examples import examples
from tests.layout.copies_reference import (
    device_to_host_reference,
    expanded_dims,
    host_positions,
    host_to_device_reference,
)

# host size, device size, stride map of June, stride map since August (None: the same).
DEFAULT_FP16 = [
    ([], [1, 64], [-1, -1], None),
    ([120], [2, 64], [64, 1], None),
    ([60], [1, 64], [64, 1], [60, 1]),
    ([512, 240], [4, 512, 64], [64, 240, 1], None),
    ([40, 60], [1, 40, 64], [64, 60, 1], [60, 60, 1]),
    ([512, 8, 240], [8, 4, 512, 64], [240, 64, 1920, 1], None),
    ([5, 100, 150], [100, 3, 5, 64], [150, 64, 15000, 1], None),
    ([2, 3, 100, 150], [3, 100, 3, 2, 64], [15000, 150, 64, 45000, 1], None),
    ([2, 3, 4, 100, 150], [3, 4, 100, 3, 2, 64], [60000, 15000, 150, 64, 180000, 1], None),
    ([3, 1, 5], [1, 1, 3, 64], [-1, 64, 5, 1], [-1, 5, 5, 1]),
]

DIM_ORDERS = [
    ([512, 256], [1, 0], [8, 256, 64], [16384, 1, 256]),
    ([512, 256], [0, 1, -1], [256, 1, 512, 64], [1, -1, 256, -1]),
]


def dense_host(size, dtype=np.float16):
    """Distinct small numbers in a contiguous host tensor, exact in DL16."""
    return (np.arange(int(np.prod(size, dtype=int))) % 499 + 1).astype(dtype)


class TestConstructors:
    @pytest.mark.parametrize(("size", "device", "june", "august"), DEFAULT_FP16)
    def test_default_layout(self, size, device, june, august):
        layout = SpyreTensorLayout.from_host(size, "float16")
        assert layout == SpyreTensorLayout(tuple(device), tuple(august or june), "SEN169_FP16")
        unclamped = SpyreTensorLayout.from_host(size, "float16", clamped=False)
        assert unclamped == SpyreTensorLayout(tuple(device), tuple(june), "SEN169_FP16")

    @pytest.mark.parametrize(("size", "order", "device", "strides"), DIM_ORDERS)
    def test_dim_order(self, size, order, device, strides):
        layout = SpyreTensorLayout.from_dim_order(size, contiguous_strides(size), "float16", order)
        assert (list(layout.device_size), list(layout.stride_map)) == (device, strides)

    def test_fp32_sticks_hold_32(self):
        layout = SpyreTensorLayout.from_host([1, 128], "float32")
        assert layout == SpyreTensorLayout((4, 1, 32), (32, -1, 1), "IEEE_FP32")

    def test_strided_host(self):
        layout = SpyreTensorLayout.from_dim_order([4, 128], [1, 4], "fp16", [0, 1])
        assert layout == SpyreTensorLayout((2, 4, 64), (256, 1, 4), "SEN169_FP16")

    def test_june_refuses_more_than_six_dims(self):
        size = [2] * 7
        assert len(SpyreTensorLayout.from_host(size, "float16").device_size) == 8
        with pytest.raises(UnsupportedError, match="Unsupported tensor rank: 7"):
            SpyreTensorLayout.from_host(size, "float16", clamped=False)
        sparse = ([2] * 6, [32, 16, 8, 4, 2, 1], "float16", [*range(6), -1])
        assert len(SpyreTensorLayout.from_dim_order(*sparse, clamped=False).device_size) == 8

    @pytest.mark.parametrize(("clamped", "outer"), [(False, 0), (True, 5)])
    def test_empty_dims(self, clamped, outer):
        assert (
            SpyreTensorLayout.from_host([3, 0, 5], "float16", clamped=clamped).stride_map[2]
            == outer
        )

    @pytest.mark.parametrize("order", [[0], [0, 0], [0, 1, 2], [0, -1], [-1, 0, 1], [0, 1, -1, -1]])
    def test_wrong_dim_order(self, order):
        with pytest.raises(LaunchError, match="Incompatible host_size and dim_order"):
            SpyreTensorLayout.from_dim_order([4, 5], [5, 1], "float16", order)

    def test_wrong_number_of_strides(self):
        with pytest.raises(LaunchError, match="Incompatible host_size and host_strides"):
            SpyreTensorLayout.from_dim_order([4, 5], [1], "float16", [0, 1])

    def test_unsupported_dtype(self):
        with pytest.raises(UnsupportedError, match="does not support dtype float64"):
            SpyreTensorLayout.from_host([4], "float64")

    @pytest.mark.parametrize(
        ("device", "strides", "dtype", "arrangement", "text"),
        [
            ([], [], "SEN169_FP16", "STANDARD", "same number of dims"),
            ([2, 64], [1], "SEN169_FP16", "STANDARD", "same number of dims"),
            ([-2, 64], [64, 1], "SEN169_FP16", "STANDARD", "cannot be negative"),
            ([2, 64], [-2, 1], "SEN169_FP16", "STANDARD", "not below -1"),
            ([2, 64], [64, 1], "FP17", "STANDARD", "unknown number format"),
            ([2, 64], [64, 1], "SEN169_FP16", "ZIGZAG", "unknown element arrangement"),
        ],
    )
    def test_malformed(self, device, strides, dtype, arrangement, text):
        with pytest.raises(LaunchError, match=text):
            SpyreTensorLayout(device, strides, dtype, arrangement)


class TestValue:
    layout = SpyreTensorLayout((4, 512, 64), (64, 240, 1), "SEN169_FP16")
    tagged = SpyreTensorLayout((4, 32), (32, 1), "IEEE_FP32", "DL16_TO_FP32")

    def test_text(self):
        assert str(self.layout) == (
            "SpyreTensorLayout(device_size=[4, 512, 64], stride_map =[64, 240, 1], "
            "device_dtype=DataFormats.SEN169_FP16)"
        )
        assert str(self.tagged).endswith(", element_arrangement=ElementArrangement.DL16_TO_FP32)")

    def test_equality_and_hash_over_all_fields(self):
        same = SpyreTensorLayout([4, 512, 64], [64, 240, 1], "SEN169_FP16")
        assert same == self.layout
        assert hash(same) == hash(self.layout)
        plain = SpyreTensorLayout((4, 32), (32, 1), "IEEE_FP32")
        assert plain != self.tagged
        assert len({self.layout, same, self.tagged, plain}) == 3

    def test_bytes_and_strides(self):
        assert self.layout.device_bytes == 128 * 4 * 512
        assert self.layout.device_strides == (32768, 64, 1)
        assert self.layout.elements_per_stick == 64
        assert storage_bytes(self.layout, [512, 240], "float16") == 128 * 4 * 512
        one_per_stick = SpyreTensorLayout.from_host([1024], "int64")
        assert storage_bytes(one_per_stick, [1024], "int64") == 8192

    def test_pickle(self):
        for layout in (self.layout, self.tagged):
            assert pickle.loads(pickle.dumps(layout)) == layout
            assert copy.deepcopy(layout) == layout


stick_sizes = st.lists(st.sampled_from([1, 3, 64, 65, 130]), min_size=1, max_size=1)


@st.composite
def host_tensors(draw):
    """Host size, strides (maybe permuted), and a dim order, maybe sparse."""
    size = draw(st.lists(st.integers(1, 5), max_size=3)) + draw(stick_sizes)
    rank = len(size)
    memory_order = draw(st.permutations(range(rank)))
    in_memory = contiguous_strides([size[d] for d in memory_order])
    strides = [0] * rank
    for d, stride in zip(memory_order, in_memory, strict=True):
        strides[d] = stride
    order = list(draw(st.permutations(range(rank))))
    if draw(st.booleans()) and len(size) < 4:
        order.append(-1)
    return size, strides, order


class TestStrideMapIdentity:
    @examples(150)
    @given(host_tensors(), st.booleans())
    def test_positions_and_stride_map_agree(self, host, clamped):
        """Σ c·stride_map is the storage element, and every host element has one position."""
        size, strides, order = host
        layout = SpyreTensorLayout.from_dim_order(size, strides, "float16", order, clamped=clamped)
        coordinates, valid = host_positions(transfer_geometry(layout, size, strides))
        device = np.indices(layout.device_size)
        by_map = sum(
            c * s
            for c, s, n in zip(device, layout.stride_map, layout.device_size, strict=True)
            if s > 0 and n > 1
        ) + np.zeros(layout.device_size, int)
        by_host = np.tensordot(np.array(strides), coordinates, axes=1)
        np.testing.assert_array_equal(by_map[valid], by_host[valid])
        total = int(np.prod(size))
        assert sorted(by_host[valid]) == list(range(total))

    @examples(100)
    @given(host_tensors(), st.data())
    def test_device_coordinate_is_the_inverse(self, host, data):
        size, strides, order = host
        layout = SpyreTensorLayout.from_dim_order(size, strides, "float16", order)
        index = tuple(data.draw(st.integers(0, n - 1)) for n in size)
        position = device_coordinate(layout, size, strides, index)
        coordinates, valid = host_positions(transfer_geometry(layout, size, strides))
        where = (*position.stick, position.lane)
        assert valid[where]
        significant = [n > 1 for n in size]
        found = [
            int(c)
            for c, s in zip(coordinates[(slice(None), *where)], significant, strict=True)
            if s
        ]
        assert found == [i for i, s in zip(index, significant, strict=True) if s]
        assert position.byte_offset == 2 * np.ravel_multi_index(where, layout.device_size)


class TestGeometry:
    def test_default_layout(self):
        layout = SpyreTensorLayout.from_host([5, 100, 150], "float16")
        geometry = transfer_geometry(layout, [5, 100, 150], [15000, 150, 1])
        assert geometry.host_dims == (1, 2, 0, 2)
        assert geometry.multipliers == (1, 64, 1, 1)
        assert geometry.limits == (100, 3, 5, 64)
        assert geometry.stick_axis == -1

    def test_size_one_dims_have_no_effect(self):
        layout = SpyreTensorLayout((1, 4, 1, 1, 64), (-1, 1, -1, -1, -1), "SEN169_FP16")
        geometry = transfer_geometry(layout, [1, 1, 4, 1], [4, 4, 1, 1])
        assert geometry.host_dims == (-1, 2, -1, -1, -1)
        assert geometry.limits == (1, 4, 1, 1, 1)

    def test_expanded_copy(self):
        layout = SpyreTensorLayout((3, 2, 64), (0, 64, 1), "SEN169_FP16")
        geometry = transfer_geometry(layout, [128], [1])
        assert expanded_dims(geometry) == (True, False, False)
        host = dense_host([128])
        device = host_to_device_reference(host, 0, layout, [128], [1], "float16")
        rows = device.view(np.uint16).reshape(3, 128)
        np.testing.assert_array_equal(rows[0], rows[2])
        np.testing.assert_array_equal(rows[0], encode_device(host, "SEN169_FP16"))
        back = device_to_host_reference(device, host * 0, 0, layout, [128], [1], "float16")
        np.testing.assert_array_equal(back, host)

    @pytest.mark.parametrize(
        ("device", "strides", "size", "text"),
        [
            ([3, 64], [2, 3], [7, 6], "no host dim for stride 3 of device dim 1"),
            ([1, 64], [64, 1], [70], "device extents reach 64 of 70 in host dim 0"),
            ([2, 32], [32, 1], [64], "not one stick"),
            ([2, 1, 64], [-1, 64, 1], [2, 64], "device extents reach 1 of 2 in host dim 0"),
        ],
    )
    def test_misfits(self, device, strides, size, text):
        layout = SpyreTensorLayout(device, strides, "SEN169_FP16")
        host_strides = [2 * s for s in contiguous_strides(size)] if 3 in strides else None
        with pytest.raises(LaunchError, match="Invalid device sizes and stride map") as caught:
            transfer_geometry(layout, size, host_strides or contiguous_strides(size))
        assert text in str(caught.value)

    def test_rank_of_sizes_and_strides(self):
        layout = SpyreTensorLayout.from_host([64], "float16")
        with pytest.raises(LaunchError, match="different rank"):
            transfer_geometry(layout, [64], [1, 1])

    def test_host_coordinate_of_offset(self):
        assert host_coordinate_of_offset(137, [4, 1, 64], [64, 64, 1]) == (2, 0, 9)
        with pytest.raises(LaunchError, match="outside the host tensor"):
            host_coordinate_of_offset(256, [4, 64], [64, 1])

    def test_index_outside_the_layout(self):
        layout = SpyreTensorLayout.from_host([4, 64], "float16")
        with pytest.raises(LaunchError, match="no device position for"):
            device_coordinate(layout, [4, 64], [64, 1], (4, 0))


class TestTransfer:
    def test_padding_is_zero(self):
        layout = SpyreTensorLayout.from_host([3, 70], "float16")
        device = host_to_device_reference(dense_host([3, 70]), 0, layout, [3, 70], [70, 1], "fp16")
        codes = device.view(np.uint16).reshape(layout.device_size)
        assert (codes[0] != 0).all()
        assert (codes[1, :, :6] != 0).all()
        assert (codes[1, :, 6:] == 0).all()

    def test_column_tiles(self):
        """[row, column] lies in tile column // 64: rows of a tile are neighbouring sticks."""
        layout = SpyreTensorLayout.from_host([2, 128], "float32")
        host = np.arange(256, dtype=np.float32)
        device = host_to_device_reference(host, 0, layout, [2, 128], [128, 1], "float32")
        expected = host.reshape(2, 4, 32).transpose(1, 0, 2).reshape(-1)
        np.testing.assert_array_equal(device.view(np.float32), expected)

    def test_storage_offset_and_host_strides(self):
        """A transposed host view goes through the strides the layout was made for."""
        layout = SpyreTensorLayout.from_host([3, 64], "float16")
        storage = dense_host([200])
        view = storage[5 : 5 + 192].reshape(64, 3).T
        device = host_to_device_reference(
            storage, 5, layout, [3, 64], [64, 1], "float16", host_strides=[1, 3]
        )
        plain = host_to_device_reference(
            np.ascontiguousarray(view).reshape(-1), 0, layout, [3, 64], [64, 1], "float16"
        )
        np.testing.assert_array_equal(device, plain)
        back = device_to_host_reference(
            device, np.zeros_like(storage), 5, layout, [3, 64], [64, 1], "fp16", host_strides=[1, 3]
        )
        np.testing.assert_array_equal(back[5:197], storage[5:197])
        assert (back[:5] == 0).all()
        assert (back[197:] == 0).all()

    @pytest.mark.parametrize(
        ("dtype", "values"),
        [
            ("bool", np.array([True, False] * 40)),
            ("int64", np.arange(-40, 40)),
            ("int32", np.arange(-40, 40, dtype=np.int32)),
            ("int16", np.arange(-40, 40, dtype=np.int16)),
            ("int8", np.arange(-40, 40, dtype=np.int8)),
            ("uint8", np.arange(80, dtype=np.uint8)),
            ("float32", np.linspace(-1, 1, 80, dtype=np.float32)),
            ("float8_e4m3fn", np.arange(80, dtype=np.uint8)),
            ("bfloat16", np.arange(0x3F80, 0x3F80 + 80).astype(np.uint16)),
        ],
    )
    def test_round_trip(self, dtype, values):
        layout = SpyreTensorLayout.from_host([80], dtype)
        device = host_to_device_reference(values, 0, layout, [80], [1], dtype)
        assert device.size == layout.device_bytes
        back = device_to_host_reference(device, np.zeros_like(values), 0, layout, [80], [1], dtype)
        np.testing.assert_array_equal(back, values)

    def test_dtype_conversion_during_the_copy(self):
        layout = SpyreTensorLayout.from_host([64], "float16")
        host = np.linspace(-4, 4, 64, dtype=np.float32)
        device = host_to_device_reference(host, 0, layout, [64], [1], "float32")
        np.testing.assert_array_equal(device.view(np.uint16), encode_device(host, "SEN169_FP16"))

    def test_ieee_mode(self):
        layout = SpyreTensorLayout.from_host([64], "float16")
        host = np.linspace(-4, 4, 64).astype(np.float16)
        rules = NumericRules(numerics="ieee")
        device = host_to_device_reference(host, 0, layout, [64], [1], "float16", rules=rules)
        np.testing.assert_array_equal(device.view(np.float16), host)

    def test_empty_tensor(self):
        layout = SpyreTensorLayout.from_host([0, 64], "float16")
        empty = np.zeros(0, np.float16)
        device = host_to_device_reference(empty, 0, layout, [0, 64], [64, 1], "float16")
        assert device.size == layout.device_bytes == 0

    def test_wrong_buffers(self):
        layout = SpyreTensorLayout.from_host([70], "float16")
        host = dense_host([70])
        with pytest.raises(LaunchError, match="SPY324]: host storage is too small"):
            host_to_device_reference(host, 1, layout, [70], [1], "float16")
        with pytest.raises(LaunchError, match="SPY324]: device bytes do not match"):
            device_to_host_reference(np.zeros(128, np.uint8), host, 0, layout, [70], [1], "float16")


class TestArrangements:
    def test_upcast_positions(self):
        positions = arrangement_positions("DL16_TO_FP32")
        for g, s, e in itertools.product(range(8), range(2), range(4)):
            assert positions[8 * g + 4 * s + e] == 32 * s + 4 * g + e

    def test_downcast_positions(self):
        positions = arrangement_positions("FP32_TO_DL16")
        for h, g, e in itertools.product(range(2), range(8), range(4)):
            assert positions[32 * h + 4 * g + e] == 8 * g + 4 * h + e

    def test_they_are_inverse(self):
        up, down = arrangement_positions("DL16_TO_FP32"), arrangement_positions("FP32_TO_DL16")
        np.testing.assert_array_equal(up[down], np.arange(64))

    def test_upcast_transfer(self):
        """Columns 0-3, 8-11, … of each 64 lie in the even stick, the others in the odd one."""
        layout = SpyreTensorLayout((4, 2, 32), (32, 128, 1), "IEEE_FP32", "DL16_TO_FP32")
        host = np.arange(256, dtype=np.float32)
        device = host_to_device_reference(host, 0, layout, [2, 128], [128, 1], "float32")
        sticks = device.view(np.float32).reshape(4, 2, 32)
        assert sticks[0, 0, :8].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
        assert sticks[1, 0, :8].tolist() == [4, 5, 6, 7, 12, 13, 14, 15]
        assert sticks[3, 1, :4].tolist() == [196, 197, 198, 199]
        back = device_to_host_reference(device, host * 0, 0, layout, [2, 128], [128, 1], "float32")
        np.testing.assert_array_equal(back, host)
        assert device_coordinate(layout, [2, 128], [128, 1], (1, 70)).stick == (3, 1)

    def test_downcast_transfer(self):
        layout = SpyreTensorLayout((1, 64), (64, 1), "SEN169_FP16", "FP32_TO_DL16")
        host = np.arange(64, dtype=np.float16)
        device = host_to_device_reference(host, 0, layout, [64], [1], "float16")
        values = decode_device(device.view(np.uint16), "SEN169_FP16")
        assert values[:16].tolist() == [0, 1, 2, 3, 32, 33, 34, 35, 4, 5, 6, 7, 36, 37, 38, 39]
        back = device_to_host_reference(device, host * 0, 0, layout, [64], [1], "float16")
        np.testing.assert_array_equal(back, host)

    def test_quantised_transfer(self):
        """fp8todl16 sends position p to stick (p div 8) mod 2, lane 8·(p div 16) + p mod 8."""
        positions = arrangement_positions("QFP8CH")
        for p in range(128):
            column = 64 * (p // 8 % 2) + 8 * (p // 16) + p % 8
            assert positions[column] == p
        layout = SpyreTensorLayout((1, 128), (-1, 1), "SEN143_FP8", "QFP8CH")
        host = np.arange(128, dtype=np.uint8) % 0x78
        device = host_to_device_reference(host, 0, layout, [128], [1], "float8_e4m3fn")
        np.testing.assert_array_equal(device[8:16], host[64:72])
        np.testing.assert_array_equal(device[positions], host)

    def test_one_value_per_stick_is_not_moved(self):
        layout = SpyreTensorLayout((1, 8, 32), (-1, 1, -1), "IEEE_FP32", "DL16_TO_FP32")
        assert transfer_geometry(layout, [8], [1]).arrangement == "STANDARD"

    def test_odd_number_of_sticks(self):
        layout = SpyreTensorLayout((3, 32), (32, 1), "IEEE_FP32", "DL16_TO_FP32")
        with pytest.raises(UnsupportedError, match="even number of sticks"):
            transfer_geometry(layout, [96], [1])

    def test_wrong_format(self):
        layout = SpyreTensorLayout((2, 64), (64, 1), "SEN169_FP16", "DL16_TO_FP32")
        with pytest.raises(UnsupportedError, match="DL16_TO_FP32 of a SEN169_FP16 tensor"):
            transfer_geometry(layout, [128], [1])

    @pytest.mark.parametrize("arrangement", ["EXX2", "QFP8CH", "QFP8WT"])
    def test_untransferable(self, arrangement):
        layout = SpyreTensorLayout((2, 64), (64, 1), "SEN169_FP16", arrangement)
        with pytest.raises(UnsupportedError, match=f"SPY323.*{arrangement}"):
            transfer_geometry(layout, [128], [1])


def real_buffers(shared_dir: Path):
    """(case directory, buffer name, buffer, layout) of every device tensor of the real bundles."""
    for case_file in accepted_files(shared_dir, "*/case.json"):
        for name, buffer in json.loads(case_file.read_text())["buffers"].items():
            if "layout" in buffer:
                yield case_file.parent, name, buffer, SpyreTensorLayout(**buffer["layout"])


@pytest.mark.shared
class TestRealTensors:
    def test_every_buffer_has_a_geometry(self, shared_dir):
        for case, name, buffer, layout in real_buffers(shared_dir):
            geometry = transfer_geometry(layout, buffer["dma_sizes"], buffer["dma_strides"])
            _, valid = host_positions(geometry)
            assert valid.sum() == np.prod(buffer["dma_sizes"], dtype=int), (case.name, name)
            assert layout.device_bytes <= buffer["nbytes"], (case.name, name)

    def test_inputs_survive_the_round_trip(self, shared_dir):
        """Exactly where the inputs are DL16 numbers, else within one DL16 rounding."""
        for case, name, buffer, layout in real_buffers(shared_dir):
            if "value" not in buffer:
                continue
            host = np.load(case / "values.npz")[buffer["value"]].reshape(-1)
            assert buffer["stride"] == list(contiguous_strides(buffer["shape"])), case.name
            transfer = (layout, buffer["dma_sizes"], buffer["dma_strides"], buffer["dtype"])
            device = host_to_device_reference(host, buffer["storage_offset"], *transfer)
            back = device_to_host_reference(device, np.zeros_like(host), 0, *transfer)
            exact = "up_test_" not in case.name or host.dtype != np.float16
            limit = 0.0 if exact else 2.0**-10
            np.testing.assert_allclose(back, host, rtol=limit, atol=0, err_msg=f"{case} {name}")

    def test_device_images_can_be_read(self, shared_dir):
        seen = 0
        for case, name, buffer, layout in real_buffers(shared_dir):
            if "device_image" not in buffer:
                continue
            image = np.load(case / "device_images.npz")[buffer["device_image"]]
            size, strides = buffer["dma_sizes"], buffer["dma_strides"]
            host = np.full(int(np.prod(size)), np.nan, np.float16)
            device = image[: layout.device_bytes]
            back = device_to_host_reference(device, host, 0, layout, size, strides, "float16")
            assert np.isfinite(back).all(), (case.name, name)
            seen += 1
        assert seen > 0
