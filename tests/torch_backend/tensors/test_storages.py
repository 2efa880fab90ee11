"""``torch.UntypedStorage`` on a card: bytes as torch expects them, in all layouts of the card."""

from __future__ import annotations

import copy

import pytest
import torch

from spyre.layout import SpyreTensorLayout


def content(host):
    return list(host.numpy().tobytes())


def test_bytes_are_those_of_the_host(card, host):
    storage = card.untyped_storage()
    assert storage.nbytes() == len(storage) == host.nbytes
    assert storage.device == torch.device("spyre:0")
    assert storage.tolist() == content(host)
    assert list(storage) == content(host)
    assert bytes(storage.cpu()) == host.numpy().tobytes()
    assert [storage[k] for k in (6, 7, -1)] == [content(host)[k] for k in (6, 7, -1)]
    assert list(storage[4:8]) == content(host)[4:8]


def test_bytes_can_be_written(card, host):
    storage = card.untyped_storage()
    storage[4:8] = 0
    expected = host.clone()
    expected[0, 1] = 0
    assert torch.equal(card.cpu(), expected)
    storage[7] = 64
    assert card[0, 1].item() == 2.0
    storage.fill_(0)
    assert card.cpu().count_nonzero() == 0


def test_new_storage_takes_the_layout_of_its_first_tensor(host):
    storage = torch.UntypedStorage(96, device="spyre")
    assert storage.tolist() == [0] * 96
    storage.copy_(host.untyped_storage())
    x = torch.empty(0, device="spyre").set_(storage, 0, (4, 6), (6, 1))
    assert torch.equal(x.cpu(), host)
    assert x.device_tensor_layout() == SpyreTensorLayout.from_host((4, 6), "float32")


def test_storage_from_data_is_refused():
    with pytest.raises(TypeError, match="from a number of bytes"):
        torch.UntypedStorage([1, 2], device="spyre")


def test_clone_keeps_the_layout(host):
    layout = SpyreTensorLayout.from_dim_order((4, 6), (6, 1), "float32", (1, 0))
    x = host.to("spyre", device_layout=layout)
    y = torch.empty(0, device="spyre").set_(x.untyped_storage().clone(), 0, (4, 6), (6, 1))
    assert y.device_tensor_layout() == layout
    x.zero_()
    assert torch.equal(y.cpu(), host)


def test_clone_of_bytes_without_a_layout(host):
    storage = torch.UntypedStorage(96, device="spyre")
    storage.copy_(host.untyped_storage())
    assert storage.clone().tolist() == content(host)
    assert torch.UntypedStorage(0, device="spyre").clone().nbytes() == 0


def test_copies_between_devices(card, host):
    storage = card.untyped_storage()
    there = storage.cpu().to(device="spyre")
    assert there.tolist() == content(host)
    assert there.data_ptr() != storage.data_ptr()
    assert copy.copy(storage).tolist() == content(host)


def test_resize(card):
    storage = card.untyped_storage()
    assert storage.resize_(96) is storage
    with pytest.raises(NotImplementedError, match=r"from 96 to 200 bytes.*tensor.resize_"):
        storage.resize_(200)


def test_memory_can_be_freed_and_taken_again(card, host):
    storage, pointer, layout = card.untyped_storage(), card.data_ptr(), card.device_tensor_layout()
    held = torch.spyre.memory_allocated()
    view = card[1:]
    assert storage.resize_(0) is storage
    assert storage.size() == storage.nbytes() == storage.resize_(0).nbytes() == 0
    assert torch.spyre.memory_allocated() < held
    others = [torch.full((4, 6), float(k), device="spyre") for k in range(3)]
    assert pointer not in [other.data_ptr() for other in others]
    for use in (
        lambda: view + 1,
        card.cpu,
        lambda: card.copy_(host),
        lambda: copy.copy(storage)[0],
    ):
        with pytest.raises(RuntimeError, match="SPY905"):
            use()
    storage.resize_(96)
    assert storage.nbytes() == 96
    assert torch.spyre.memory_allocated() == held + 3 * 512
    card.copy_(host)
    assert torch.equal((view + 1).cpu(), host[1:] + 1)
    assert (card.data_ptr(), card.device_tensor_layout()) == (pointer, layout)
    assert [other.cpu()[0, 0].item() for other in others] == [0, 1, 2]


def test_what_was_submitted_keeps_freed_memory(card, host):
    y = card
    for _ in range(20):
        y = y + 1
    total = card + y
    card.untyped_storage().resize_(0)
    assert torch.equal(total.cpu(), 2 * host + 20)


def test_raw_memory_can_be_freed():
    storage = torch.UntypedStorage(6, device="spyre")
    storage.fill_(3).resize_(0)
    assert storage.resize_(6).nbytes() == 6
    assert len(storage.tolist()) == 6


def test_a_tensor_of_the_size_asked_for_keeps_its_strides():
    wide = torch.arange(12.0).to("spyre").view(6, 2)[:, 1]
    assert wide.resize_(6).stride() == (2,)
    assert torch.ones(6, out=wide) is wide
    assert wide.stride() == (2,)
    assert wide.tolist() == [1.0] * 6


def test_resize_to_a_memory_format(card):
    x = card.resize_(2, 2, 2, 3, memory_format=torch.channels_last)
    assert x.stride() == (12, 1, 6, 2)
    assert x.resize_(2, 2, 2, 3, memory_format=torch.contiguous_format).is_contiguous()
    with pytest.raises(RuntimeError, match="rank 4 tensor to use channels_last"):
        card.resize_(6, memory_format=torch.channels_last)


def test_tensor_resize_keeps_elements(card, host):
    x = card.resize_(6, 8)
    assert x.shape == (6, 8)
    assert torch.equal(x.cpu().flatten()[:24], host.flatten())
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]


def test_sharing_is_refused(card):
    assert not card.is_shared()
    for share in (card.share_memory_, card.untyped_storage().share_memory_):
        with pytest.raises(RuntimeError, match="cannot be shared between processes"):
            share()
    with pytest.raises(RuntimeError, match="cannot be shared between processes"):
        torch.nn.Linear(2, 2).to("spyre").share_memory()


def test_storages_of_the_cpu_are_torchs(host):
    storage = host.untyped_storage()
    assert storage.tolist() == content(host)
    assert storage.clone().resize_(10).nbytes() == 10
    assert not storage.is_shared()
    assert "device=cpu" in repr(storage[:2])


def test_text():
    text = repr(torch.ones(1, dtype=torch.uint8, device="spyre").untyped_storage())
    assert text == " 1\n[torch.storage.UntypedStorage(device=spyre:0) of size 1]"


def test_typed_storage(card, host):
    storage = card._typed_storage()
    assert storage._size() == 24
    assert storage._getitem(3) == 3.0


def test_deepcopy_keeps_sharing(card, host):
    x, view = copy.deepcopy((card, card[1:]))
    assert torch.equal(view.cpu(), host[1:])
    view.zero_()
    assert x.cpu()[1:].count_nonzero() == 0
    assert torch.equal(card.cpu(), host)


def test_deepcopy_keeps_the_layout(host):
    layout = SpyreTensorLayout.from_dim_order((4, 6), (6, 1), "float32", (1, 0))
    x = host.to("spyre", device_layout=layout)
    assert copy.deepcopy(x).device_tensor_layout() == layout
    assert copy.copy(x).data_ptr() == x.data_ptr()


def test_pinned_memory(host):
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert pinned.pin_memory() is pinned
    assert pinned[1:].is_pinned()
    assert not host.is_pinned()
    assert pinned.data_ptr() != host.data_ptr()
    assert torch.equal(pinned.to("spyre", non_blocking=True).cpu(), host)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        host.to("spyre").pin_memory()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.empty(2, device="spyre", pin_memory=True)


def test_gradients_flow_through_pinned_memory(host):
    given = host.clone().requires_grad_()
    (2 * given.pin_memory()).sum().backward()
    assert torch.equal(given.grad, torch.full_like(host, 2))


def test_other_libraries_get_a_clear_refusal(card, host):
    with pytest.raises(BufferError, match="DLPack"):
        card.__dlpack__()
    with pytest.raises(TypeError, match=r"can't convert spyre:0 device type tensor to numpy"):
        card.numpy()
    assert torch.equal(torch.from_dlpack(host), host)


def test_storages_say_where_they_are():
    host = torch.arange(3.0).untyped_storage()
    card = torch.arange(3.0, device="spyre").untyped_storage()
    assert (host.is_spyre, card.is_spyre) == (False, True)
    assert torch.empty(0, device="spyre").storage().is_spyre


@pytest.mark.parametrize("copy", [lambda t: t.cpu(), lambda t: torch.empty(6).copy_(t)])
def test_what_comes_from_the_card_can_be_resized(copy):
    assert copy(torch.arange(6.0).to("spyre")).resize_(12)[:6].tolist() == [0, 1, 2, 3, 4, 5]


def test_what_goes_to_the_card_can_be_resized():
    host = torch.arange(6.0)
    host.to("spyre")
    assert host.resize_(12).numel() == 12
