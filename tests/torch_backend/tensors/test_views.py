"""Views: they share memory on the card, and writing through them is seen."""

from __future__ import annotations

import pytest
import torch

VIEWS = {
    "t": lambda x: x.t(),
    "slice": lambda x: x[1:3, ::2],
    "as_strided": lambda x: x.as_strided((3, 2), (6, 1), 1),
    "expand": lambda x: x[None].expand(3, 4, 6),
    "unfold": lambda x: x.unfold(1, 3, 1),
    "view": lambda x: x.view(24),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "select": lambda x: x[2],
    "flatten": lambda x: x.flatten(),
    "permute": lambda x: x.permute(1, 0).unsqueeze(0),
    "diagonal": lambda x: x.diagonal(),
    "unbind": lambda x: x.unbind(0)[1],
    "movedim": lambda x: x.movedim(0, 1),
    "squeeze": lambda x: x.squeeze(),
    "split": lambda x: x.split([1, 3])[1],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "view_as": lambda x: x.view_as(x),
    "detach": lambda x: x.detach(),
    "reshape": lambda x: x.reshape(2, 12),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "tensor_split": lambda x: x.tensor_split(3, 1)[2],
    "ellipsis": lambda x: x[..., None, 3:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_view(card, host, name):
    view, expected = VIEWS[name](card), VIEWS[name](host)
    assert (view.shape, view.stride()) == (expected.shape, expected.stride())
    assert view.storage_offset() == expected.storage_offset()
    assert torch.equal(view.cpu(), expected)
    assert view.data_ptr() - card.data_ptr() == expected.data_ptr() - host.data_ptr()
    assert torch.equal(view.contiguous().cpu(), expected.contiguous())
    assert torch.equal(view.clone().cpu(), expected)


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("expand", "unfold")])
def test_writing_through_a_view(card, host, name):
    for x in (card, host):
        VIEWS[name](x).copy_(VIEWS[name](torch.full((4, 6), 9.0)))
        VIEWS[name](x).add_(1)
    assert torch.equal(card.cpu(), host)


def test_writing_to_the_base_is_seen_in_views(card, host):
    view, expected = card.t()[2:], host.t()[2:]
    card[1].zero_()
    host[1].zero_()
    card.mul_(2)
    host.mul_(2)
    assert torch.equal(view.cpu(), expected)


def test_slice_assignment(card, host):
    for x in (card, host):
        x[1:3, ::2] = 9
        x[0] = torch.arange(6.0)
        x.view(-1)[3:5].copy_(torch.tensor([5.0, 6.0]))
        x[x > 20] = -1
        x[[0, 2]] = 3
    assert torch.equal(card.cpu(), host)


def test_dtype_views(card, host):
    assert torch.equal(card.view(torch.int32).cpu(), host.view(torch.int32))
    assert torch.equal(card.view(torch.uint8).cpu(), host.view(torch.uint8))


def test_in_place_operations_return_the_tensor(card):
    for result in (card.add_(1), card.fill_(3), card.clamp_(max=1), card.t_(), card.zero_()):
        assert result is card
    assert card.shape == (6, 4)


def test_out(card, host):
    out = torch.empty(0, device="spyre")
    assert torch.add(card, card, out=out) is out
    assert torch.equal(out.cpu(), host + host)
    out = torch.empty(4, 6, device="spyre")
    torch.mul(card, card, out=out)
    assert torch.equal(out.cpu(), host * host)
    view = torch.zeros(8, 6, device="spyre")
    torch.mul(card, 2, out=view[::2])
    assert torch.equal(view.cpu()[::2], host * 2)
    assert view.cpu()[1::2].count_nonzero() == 0


def test_indexing(card, host):
    index = torch.tensor([0, 2])
    for i in (index, index.to("spyre"), [0, 2]):
        assert torch.equal(card[i].cpu(), host[[0, 2]])
    assert torch.equal(card[card > 5].cpu(), host[host > 5])
    assert torch.equal(card[..., -1].cpu(), host[..., -1])
    assert torch.equal(card[1, index.to("spyre")].cpu(), host[1, index])
    values, places = card.sort(descending=True)
    assert places.device.type == "spyre"
    assert torch.equal(values.cpu(), host.flip(1))
    assert card.argmax().item() == 23
    assert torch.equal(torch.where(card > 3, card, 0.0).cpu(), torch.where(host > 3, host, 0.0))


def test_set(card, host):
    x = torch.empty(0, device="spyre")
    x.set_(card)
    assert x.data_ptr() == card.data_ptr()
    x.set_(card.untyped_storage(), 6, (2, 3), (6, 2))
    assert torch.equal(x.cpu(), host.as_strided((2, 3), (6, 2), 6))


def test_bytes_written_to_a_fresh_storage_get_the_layout_of_their_tensor(host):
    storage = host.half().untyped_storage().to(device="spyre")
    x = torch.empty(0, dtype=torch.float16, device="spyre").set_(storage, 0, (4, 6), (6, 1))
    assert x.device_tensor_layout() == host.half().to("spyre").device_tensor_layout()
    assert torch.equal(x.cpu(), host.half())


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.uint8]
)
@pytest.mark.parametrize("way", ["cpu", "contiguous", "strided", "other dtype", "broadcast"])
def test_copies_to_cpu_tensors(dtype, way):
    source = (torch.arange(3 * 70) % 2).reshape(3, 70).to(dtype)
    card = source.to("spyre")
    if way == "cpu":
        target = card.cpu()
    else:
        made = torch.float64 if way == "other dtype" else dtype
        target = torch.full((2, 3, 70) if way == "broadcast" else (3, 70), 1).to(made)
        target = target.t().contiguous().t() if way == "strided" else target
        target.copy_(card)
    assert torch.equal(target, source.to(target.dtype).expand(target.size()))
