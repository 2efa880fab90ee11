"""Tests of torch's example of an open device (torch_openreg, torch 2.13) on this device.

Left out, and why:

- metadata of a backend that goes with a tensor into files, and fake tensors with it: a hook in C++
- tensors without storage, and their files of NumPy arrays: every tensor here has a storage
- quantisation, float64 and complex numbers: the card has no such formats, and refuses them
- names of the autograd engine's threads: backward passes run in the thread that asks for them
- offsets of generators: those of the cards are torch's CPU generators, which have none
- ``dot`` in float32 under autocast: a list of openreg's own; here those of torch's backends hold
- memory shared with other processes, activities for Kineto, dispatch stubs in C++, tracing of
  operators in C++: there is no C++ here
- slices of pinned storages: ``is_pinned`` knows whole storages

Files, distributed groups, compiled functions, recurrent layers and OpInfo have tests of their own.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn.attention import SDPBackend

from tests.torch_backend.processes import run

# --- streams and events --------------------------------------------------------------------------


def test_text_of_a_stream():
    stream = torch.Stream(device="spyre:0")
    expected = f"torch.Stream device_type=spyre, device_index=0, stream_id={stream.stream_id}"
    assert expected in repr(stream)
    assert repr(stream) == repr(torch.spyre.Stream(stream_id=stream.stream_id))


def test_streams_by_number_and_by_id():
    stream = torch.Stream(0)
    assert stream.device == torch.device("spyre:0")
    again = torch.Stream(
        stream_id=stream.stream_id,
        device_type=stream.device_type,
        device_index=stream.device_index,
    )
    assert again == stream
    assert stream.query()
    with stream as entered:
        assert torch.accelerator.current_stream() == entered == stream


@pytest.mark.parametrize("device", [None, "spyre", "spyre:0"])
def test_an_event_has_no_place_before_it_is_recorded(device):
    event = torch.Event() if device is None else torch.Event(device=device)
    assert event.device.type == "spyre"
    assert event.device.index is None
    assert event.event_id == 0
    assert event.query()
    event.record(torch.Stream("spyre"))
    event.synchronize()
    assert event.device.index == 0
    assert event.event_id != 0
    assert event.query()


def test_events_have_ids():
    stream = torch.Stream("spyre")
    events = [stream.record_event() for _ in range(3)]
    ids = {event.event_id for event in events}
    assert len(ids) == 3
    assert 0 not in ids
    first_id = events[0].event_id
    events[0].record(stream)  # again
    assert events[0].event_id == first_id


def test_time_between_events():
    stream = torch.Stream("spyre")
    begin, end = (torch.Event(enable_timing=True) for _ in range(2))
    begin.record(stream)
    end.record(stream)
    stream.synchronize()
    assert begin.elapsed_time(end) >= 0
    with pytest.raises(ValueError, match="must be created with argument 'enable_timing=True'"):
        stream.record_event().elapsed_time(stream.record_event())


def test_streams_that_wait_for_one_event():
    first, second, third = (torch.Stream("spyre") for _ in range(3))
    x, y = (torch.rand(30, 30, device="spyre") for _ in range(2))
    event = first.record_event()
    results = []
    for stream in (second, third):
        stream.wait_event(event)
        stream.wait_stream(first)
        with stream:
            results.append(x @ y)
    torch.accelerator.synchronize()
    assert event.query()
    assert torch.equal(*results)


# --- devices -------------------------------------------------------------------------------------


def test_two_cards():
    run(
        """
    device = torch.accelerator.current_device_index()
    assert torch.accelerator.device_count() == 2
    with torch.accelerator.device_index(None):
        assert torch.accelerator.current_device_index() == device
    try:
        with torch.accelerator.device_index(1):
            with torch.accelerator.device_index(0):
                assert torch.randn(2, device="spyre").device.index == 0
                raise ValueError
    except ValueError:
        assert torch.accelerator.current_device_index() == device
    try:
        torch.accelerator.set_device_index(2)
    except RuntimeError as error:
        assert "SPY883" in str(error)
    a, b = torch.Event("spyre:0"), torch.Event("spyre:1")
    a.record(torch.Stream("spyre:0")), b.record(torch.Stream("spyre:1"))
    assert (a.device.index, b.device.index) == (0, 1)
    torch.Stream("spyre:1").wait_stream(torch.Stream("spyre:0"))
    pointers = [{torch.empty(9, device=f"spyre:{k}").data_ptr()} for k in range(2)]
    assert not set.intersection(*pointers)
    assert torch.ones(4).spyre(1).device.index == 1
    for k in range(2):
        assert torch.serialization.location_tag(torch.UntypedStorage(4, device=f"spyre:{k}")) == (
            f"spyre:{k}")
        assert torch.Generator(device=f"spyre:{k}").device.index == k
    torch.accelerator.set_device_index(1)
    assert torch.matmul(*[torch.randn(5, 5, device="spyre")] * 2).sum().device.index == 1
    torch.accelerator.synchronize()
    assert torch.accelerator.current_device_index() == 1
    """,
        AIU_WORLD_SIZE="2",
    )


def test_threads_have_cards_of_their_own():
    errors = []

    def work():
        for _ in range(10):
            torch.accelerator.set_device_index(0)
            x = torch.randn(10, 10, device="spyre")
            if (x @ x).sum().device.index != torch.accelerator.current_device_index():
                errors.append("another card")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_after_an_error():
    with pytest.raises(RuntimeError):
        torch.matmul(torch.randn(5, 5, device="spyre"), torch.randn(3, 3, device="spyre"))
    z = torch.ones(5, 5, device="spyre")
    assert (z @ z).sum().item() == 125


def test_capability():
    capability = torch.accelerator.get_device_capability("spyre:0")
    assert {torch.float16, torch.float32, torch.int64} <= set(capability["supported_dtypes"])


# --- names ---------------------------------------------------------------------------------------


def test_names_of_the_backend():
    torch.utils.rename_privateuse1_backend("spyre")
    with pytest.raises(RuntimeError, match="has already been set"):
        torch.utils.rename_privateuse1_backend("dev")
    with pytest.raises(RuntimeError, match=r"Try to call torch\.spyre"):
        torch.utils.backend_registration._get_custom_mod_func("no_such_function")
    count = torch.utils.backend_registration._get_custom_mod_func("device_count")
    assert count() == torch.spyre.device_count()
    with pytest.raises(RuntimeError, match="The runtime module of"):
        torch._register_device_module("spyre", torch.spyre)
    assert torch._C._profiler.ProfilerActivity.SPYRE.name == "SPYRE"
    assert torch._C._autograd.DeviceType.SPYRE.value == 20


def test_generated_methods():
    packed = torch.nn.utils.rnn.PackedSequence(torch.rand(5, 3), torch.ones(5, dtype=torch.int64))
    assert not packed.is_spyre
    assert packed.spyre().is_spyre
    assert packed.spyre().data.is_spyre
    x = torch.empty(4, 4)
    assert not x.is_spyre
    assert all(y.is_spyre for y in (x.spyre(), x.spyre(0), x.spyre(torch.device("spyre"))))
    assert torch.nn.Linear(2, 2).spyre().weight.is_spyre
    assert not x.storage().is_spyre
    assert x.storage().spyre().is_spyre
    assert x.untyped_storage().spyre().is_spyre


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_types():
    names = {torch.bool: "Bool", torch.float32: "Float", torch.half: "Half", torch.int32: "Int"}
    names |= {torch.int64: "Long", torch.int8: "Char", torch.short: "Short", torch.uint8: "Byte"}
    for dtype, name in names.items():
        assert torch.empty(4, dtype=dtype, device="spyre").type() == f"torch.spyre.{name}Tensor"
    storage = torch.randn(8).spyre().storage()
    assert storage.type() == "torch.storage.TypedStorage"
    assert storage.size() == 8


# --- tensors -------------------------------------------------------------------------------------


def test_factories():
    assert torch.tensor((), device="spyre").shape == (0,)
    strided = torch.empty_strided((3, 4), (4, 1), device="spyre")
    assert strided.stride() == (4, 1)
    images = torch.empty(2, 3, 4, 4, device="spyre", memory_format=torch.channels_last)
    assert images.is_contiguous(memory_format=torch.channels_last)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        z = torch.empty(3, 3, device="spyre") + torch.empty(3, 3, device="spyre:0")
        assert (z.device.type, z.shape) == ("spyre", (3, 3))


def test_memory_that_nobody_has_filled(monkeypatch):
    """With deterministic algorithms, reads of memory never written give conspicuous values."""
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in (torch.float16, torch.float32):
            made = (torch.empty(3, dtype=dtype, device="spyre"), torch.empty_like(made_of(dtype)))
            assert not any(x.cpu().isfinite().any() for x in made)  # DL16 has one code for all
        for dtype, most in ((torch.int8, 127), (torch.int64, 2**31 - 1), (torch.bool, True)):
            assert torch.empty(3, dtype=dtype, device="spyre").tolist() == [most] * 3
        assert torch.zeros(3, device="spyre").tolist() == [0] * 3
        monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
        assert torch.empty(3, device="spyre").tolist() == [0] * 3
    finally:
        torch.use_deterministic_algorithms(False)


def made_of(dtype):
    return torch.ones(2, 3, device="spyre").to(dtype)


def test_views_share_memory():
    x = torch.ones(100, device="spyre")
    pointer = x.data_ptr()
    y = x.view_as(x)
    assert x.view(10, 10).data_ptr() == x.expand(2, 100).data_ptr() == y.data_ptr() == pointer
    x.add_(1).mul_(2)
    assert x.data_ptr() == pointer
    assert torch.all(y == 4)
    assert x.clone().data_ptr() != pointer
    x.resize_(50).resize_(100)
    assert x.numel() == 100


def test_results_in_strided_memory():
    x = torch.randn(2, 2, 3)
    for step in (2, 3):
        expected, result = torch.ones(2, 2, 6), torch.ones(2, 2, 6).to("spyre")
        size = len(range(0, 6, step))
        torch.abs(x[..., :size], out=expected[:, :, 0:6:step])
        torch.abs(x[..., :size].to("spyre"), out=result[:, :, 0:6:step])
        assert torch.equal(result.cpu(), expected)


def test_data_of_another_device():
    x, y = torch.randn(4, 4), torch.randn(4, 4, device="spyre")
    x.data = y
    assert x.device == y.device
    assert x.data_ptr() == y.data_ptr()
    x.data = torch.ones(4, 4)
    assert x.is_cpu


def test_pinned_memory():
    x = torch.randn(10)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned[2:5].is_pinned()
    storage = x.untyped_storage()
    assert not storage.is_pinned("spyre")
    assert storage.pin_memory("spyre").is_pinned("spyre")


def test_operations_by_lists_and_indices():
    x = torch.tensor([1.0, 2, 3], device="spyre")
    assert [y.tolist() for y in torch._foreach_add([x, x], [x, x])] == [[2, 4, 6]] * 2
    assert torch.triu_indices(3, 3, device="spyre").tolist() == torch.triu_indices(3, 3).tolist()
    rows = torch.tensor([[1.0, 2, 3], [2, 3, 4]], device="spyre")
    index = torch.tensor([1, 0], device="spyre")
    assert rows[index, index].tolist() == [3, 1]
    assert torch.masked_select(rows, rows.gt(2)).tolist() == [3, 3, 4]


def test_masks_of_bytes_are_deprecated():
    x, mask = torch.ones(3), torch.tensor([1, 0, 1], dtype=torch.uint8)
    for device in ("cpu", "spyre"):
        with pytest.warns(UserWarning, match=r"indexing with dtype torch\.uint8 is now deprecated"):
            assert x.to(device)[mask.to(device)].tolist() == [1, 1]


def test_results_on_another_device():
    x = torch.ones(3, device="spyre")
    for out in (torch.empty(3), torch.empty(())):
        with pytest.raises(RuntimeError, match=r"on the same device|is on cpu"):
            torch.add(x, x, out=out)
        with pytest.raises(RuntimeError, match=r"on the same device|is on cpu"):
            torch.nonzero(x, out=out.long())


def test_choice_of_attention():
    q = torch.rand(1, 2, 8, 64, dtype=torch.float16, device="spyre")
    assert torch._fused_sdp_choice(q, q, q) == SDPBackend.OVERRIDEABLE.value
    assert torch._fused_sdp_choice(q, q, q, dropout_p=0.5) == SDPBackend.MATH.value
    assert torch.nn.functional.scaled_dot_product_attention(q, q, q).shape == q.shape


@pytest.mark.parametrize("made_on", ["device", "meta"])
@pytest.mark.parametrize("goes_to", ["device", "meta", "empty"])
def test_modules_without_content_keep_their_parameters_as_torch_has_it(made_on, goes_to):
    def kept(device):
        layer = torch.nn.Linear(2, 2, device=device if made_on == "device" else "meta")
        weight = layer.weight
        if goes_to == "empty":
            layer.to_empty(device=device)
        elif (made_on, goes_to) != ("meta", "device"):
            layer.to(device if goes_to == "device" else "meta")
        return layer.weight is weight

    assert kept("spyre") == kept("cpu")


# --- random numbers, autocast --------------------------------------------------------------------


def test_seeds():
    torch.spyre.manual_seed_all(42)
    assert torch.spyre.initial_seed() == 42
    seeds = set()
    for _ in range(2):
        torch.spyre.seed_all()
        seeds.add(torch.spyre.initial_seed())
    assert len(seeds) == 2
    assert torch.Generator("spyre").manual_seed(42).initial_seed() == 42


def test_autocast():
    assert torch.get_autocast_dtype("spyre") == torch.half
    with pytest.warns(UserWarning, match=r"only supports dtypes of torch\.float16"):
        torch.autocast("spyre", dtype=torch.float32)
    x = torch.randn(3, 3, device="spyre")
    with torch.amp.autocast(device_type="spyre", dtype=torch.float16):
        assert torch.mm(x, x).dtype == torch.float16
