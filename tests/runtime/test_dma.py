"""The DMA engine: round trips of random tensors, views, raw bytes, and several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.dtypes import encode_host, find_host_dtype
from spyre.errors import LaunchError, UnsupportedError
from spyre.hw.device.device import Device
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.hw.spec import REGION_BYTES
from spyre.layout import (
    HOST,
    SpyreTensorLayout,
    contiguous_strides,
)
from spyre.runtime.arguments.host_tensor import HostTensor, random_tensor
from spyre.runtime.dma import DmaEngine
from tests.examples import examples
from tests.hw.harness import Array
from tests.hw.strategies import seeds
from tests.layout.conversion_reference import walk
from tests.layout.copies_reference import device_to_host_reference, host_to_device_reference
from tests.layout.transfer_cases import DTYPES, Case, cases

ADDRESS = 3 * REGION_BYTES + 4096


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(threads=2)


@pytest.fixture
def engine(device: Device) -> DmaEngine:
    return DmaEngine(device)


def placed(
    sizes: tuple[int, ...], dtype: str, address: int = ADDRESS, device_dtype: str | None = None
) -> DeviceTensor:
    """A device tensor in the default layout of ``device_dtype``, a torch dtype."""
    layout = SpyreTensorLayout.from_host(sizes, device_dtype or dtype)
    return DeviceTensor("t", address, layout, dtype, sizes, contiguous_strides(sizes))


def small_numbers(case: Case, seed: int) -> HostTensor:
    """A host tensor whose numbers every format of the case's kind holds: −7 to 8, or 0 and 1."""
    rng = np.random.default_rng(seed)
    row = find_host_dtype(case.dtype)
    low = 0 if row.name in ("bool", "uint8") else -7
    high = 2 if row.name == "bool" else 9
    values = rng.integers(low, high, case.elements)
    kind = np.float32 if "float" in row.name else np.int64
    storage = encode_host(values.astype(kind), row.name)
    return HostTensor("t", row.name, case.sizes, case.strides, case.offset, storage)


def tensor_of(case: Case) -> DeviceTensor:
    return DeviceTensor("t", ADDRESS, case.layout, case.dtype, case.sizes, case.layout_strides)


# --- round trips ------------------------------------------------------------------------------


@examples(150)
@given(case=cases(), seed=seeds)
def test_layouts_round_trip(device: Device, case: Case, seed: int):
    """Any dim order, dtype, host strides and offset, dense or sparse, with partial sticks."""
    engine, host, tensor = DmaEngine(device), small_numbers(case, seed), tensor_of(case)
    device.memory.view(ADDRESS, tensor.size_bytes)[:] = 0xAA
    engine.to_device(host, tensor)
    back = engine.to_host(tensor)
    np.testing.assert_array_equal(back.to_values(), host.to_values())
    assert (back.dtype_name, back.strides) == (case.dtype, case.layout_strides)


@examples(40)
@given(case=cases(most=1000), seed=seeds)
def test_padding_is_zero_and_nothing_else_is_touched(device: Device, case: Case, seed: int):
    engine, host, tensor = DmaEngine(device), small_numbers(case, seed), tensor_of(case)
    size = tensor.size_bytes
    device.memory.view(ADDRESS - 128, size + 256)[:] = 0xAA
    made = engine.to_device(host, tensor)
    found = engine.read_bytes(ADDRESS, size)
    elements = int(np.prod(case.layout.device_size))
    padding = walk(made.moved(host.storage_offset), elements).host < 0
    assert not found.reshape(elements, -1)[padding].any() if elements else True
    around = engine.read_bytes(ADDRESS - 128, 128), engine.read_bytes(ADDRESS + size, 128)
    assert all((edge == 0xAA).all() for edge in around)


@examples(60)
@given(case=cases(most=3000), seed=seeds, data=st.data())
def test_copies_to_given_tensors_write_their_elements_only(
    device: Device, case: Case, seed: int, data: st.DataObject
):
    engine, host, tensor = DmaEngine(device), small_numbers(case, seed), tensor_of(case)
    engine.to_device(host, replace(tensor))
    before = small_numbers(case, seed + 1)
    out = replace(before, storage=before.storage.copy())
    assert engine.to_host(tensor, out) is out
    np.testing.assert_array_equal(out.to_values(), host.to_values())
    index = [case.offset + np.zeros((), np.int64)]
    for size, stride in zip(case.sizes, case.strides, strict=True):
        index.append(index[-1][..., None] + np.arange(size) * stride)
    others = np.ones(out.storage.size, np.bool_)
    others[index[-1].reshape(-1)] = False
    np.testing.assert_array_equal(out.storage[others], before.storage[others])


# --- conversion -------------------------------------------------------------------------------

FLOAT_DTYPES = ("float16", "bfloat16", "float32", "bool")
INTEGER_DTYPES = ("int64", "int32", "int16", "int8", "uint8", "bool")


@pytest.mark.parametrize("host_dtype", DTYPES)
@pytest.mark.parametrize("device_dtype", [d for d in DTYPES if d not in ("bfloat16", "bool")])
def test_every_pair_of_formats_converts_or_is_refused(
    device: Device, host_dtype: str, device_dtype: str
):
    """Bytes on the device and numbers back as the reference has them."""
    engine, sizes, strides = DmaEngine(device), (3, 150), (150, 1)
    tensor = placed(sizes, host_dtype, device_dtype=device_dtype)
    host = small_numbers(Case(tensor.layout, host_dtype, sizes, strides, strides), 1)
    together = any({host_dtype, device_dtype} <= set(d) for d in (FLOAT_DTYPES, INTEGER_DTYPES))
    if not together and host_dtype != device_dtype:
        with pytest.raises(UnsupportedError, match="SPY528"):
            engine.to_device(host, tensor)
        return
    engine.to_device(host, tensor)
    found = engine.read_bytes(ADDRESS, tensor.size_bytes)
    extents = (0, tensor.layout, sizes, strides, host_dtype)
    rules = device.numerics.transfer_rules
    np.testing.assert_array_equal(
        found, host_to_device_reference(host.storage, *extents, rules=rules)
    )
    zeros = np.zeros_like(host.storage)
    expected = device_to_host_reference(found, zeros, *extents, rules=rules)
    np.testing.assert_array_equal(engine.to_host(tensor).storage, expected[: 3 * 150])


def test_a_tensor_comes_back_in_another_dtype(engine: DmaEngine):
    tensor = placed((5, 70), "float16")
    host = random_tensor((5, 70), "float16", 0)
    engine.to_device(host, tensor)
    out = HostTensor.from_array("out", np.zeros((5, 70), np.float32))
    engine.to_host(tensor, out)
    np.testing.assert_array_equal(out.to_values(), host.to_values())


# --- raw bytes, descriptors -------------------------------------------------------------------


def test_raw_bytes_go_there_and_back(engine: DmaEngine):
    program = bytes(range(256))
    engine.write_bytes(7 * REGION_BYTES, program, "program")
    assert engine.read_bytes(7 * REGION_BYTES, 256).tobytes() == program


@pytest.mark.parametrize("address", [-128, REGION_BYTES - 64, 8 * REGION_BYTES])
def test_raw_bytes_outside_of_a_region(engine: DmaEngine, address: int):
    with pytest.raises(LaunchError, match="SPY403"):
        engine.write_bytes(address, bytes(128))
    with pytest.raises(LaunchError, match="SPY403"):
        engine.read_bytes(address, 128)


def test_the_descriptor_counts_from_the_first_element(engine: DmaEngine):
    tensor = placed((100, 150), "float16")
    host = HostTensor("x", "float16", (100, 150), (1, 100), 20, np.zeros(15020, np.float16))
    made = engine.to_device(host, tensor)
    assert [nest.first[HOST] for nest in made.nests] == [0, 12800]
    assert made.to_device


def test_a_layout_that_cannot_be_copied_is_refused(engine: DmaEngine):
    tensor = placed((100, 150), "float16")
    engine.check(tensor)
    with pytest.raises(LaunchError, match="SPY322"):
        engine.check(replace(tensor, sizes=(100, 300), strides=(300, 1)))


def test_another_shape_is_refused(engine: DmaEngine):
    with pytest.raises(LaunchError, match="SPY333"):
        engine.to_device(random_tensor((6, 4), "float16", 0), placed((4, 6), "float16"))


def test_a_target_whose_elements_share_memory_is_refused(engine: DmaEngine):
    out = HostTensor("out", "float16", (4, 6), (0, 1), 0, np.zeros(6, np.float16))
    with pytest.raises(LaunchError, match="SPY811"):
        engine.to_host(placed((4, 6), "float16"), out)


def test_a_storage_that_is_too_short(engine: DmaEngine):
    host = HostTensor("x", "float16", (4, 6), (6, 1), 1, np.zeros(24, np.float16))
    with pytest.raises(LaunchError, match="SPY324"):
        engine.to_device(host, placed((4, 6), "float16"))


# --- threads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sanitize", [False, True])
def test_threads_copy_at_once(sanitize: bool):
    """Tensors of many sizes, large ones on the shared workers; every thread finds its own."""
    device = Device(threads=2, sanitize=sanitize)
    engine = DmaEngine(device)

    def copy(number: int) -> Array:
        sizes = (64 + number, 1000 + 700 * number)
        tensor = placed(sizes, "float16", (number % 7) * REGION_BYTES + (number // 7 << 28))
        host = random_tensor(sizes, "float16", number)
        same = []
        for _ in range(5):
            engine.to_device(host, tensor)
            same.append(np.array_equal(engine.to_host(tensor).to_array(), host.to_array()))
        return np.array(same)

    with ThreadPoolExecutor(8) as threads:
        assert all(result.all() for result in threads.map(copy, range(16)))
