"""A small view of a large storage goes to the CPU alone."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend import fallback
from spyre.torch_backend.device.cards import card_of
from spyre.torch_backend.fallback import LARGE_BYTES
from spyre.torch_backend.tensors import copies

ROWS = 2 * LARGE_BYTES // (64 * 4)


@pytest.fixture
def large():
    return torch.arange(ROWS * 64, dtype=torch.float32).reshape(ROWS, 64).div_(ROWS * 8)


@pytest.fixture
def copied(monkeypatch):
    """Bytes of every storage that came down."""
    found = []

    def watched(buffer):
        found.append(buffer.host_bytes)
        return copies.start_host_storage(buffer)

    monkeypatch.setattr(fallback, "start_host_storage", watched)
    return found


VIEWS = {
    "row": lambda x: x[5],
    "rows": lambda x: x[3:7],
    "every other column": lambda x: x[:9, ::2],
    "transposed": lambda x: x[:4].t(),
    "expanded": lambda x: x[2].expand(3, 64),
    "element": lambda x: x[4, 3],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_read(large, view, copied):
    wanted, found = torch.lgamma(view(large)), torch.lgamma(view(large.to("spyre")))
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found.cpu(), wanted)
    assert copied
    assert max(copied) < LARGE_BYTES // 8


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "expanded"])
def test_written(large, name, copied):
    view = VIEWS[name]
    on_card = large.to("spyre")
    view(on_card).lgamma_()
    assert max(copied) < LARGE_BYTES // 8
    view(large).lgamma_()
    torch.testing.assert_close(on_card.cpu(), large)


def test_given_view(large, copied):
    on_card = large.to("spyre")
    for x in (large, on_card):
        torch.lgamma(torch.arange(1.0, 5, device=x.device), out=x[7, 8:12])
    assert max(copied) < LARGE_BYTES // 8
    torch.testing.assert_close(on_card.cpu(), large)


def test_views_that_overlap_are_read_from_one_copy(large):
    """Writes through one view are visible in the other, as on the CPU."""
    on_card = large.to("spyre")
    for x in (large, on_card):
        torch._foreach_lgamma_([x[1, :8], x[1, 4:12]])
        torch.atan2(x[3, 4:8], x[3, :4], out=x[3, :4])
    torch.testing.assert_close(on_card.cpu(), large)


def test_a_result_of_another_size(large):
    on_card = large.to("spyre")
    out = on_card[0, :3]
    with pytest.warns(UserWarning, match="was resized"):
        torch.linalg.inv(torch.eye(2, device="spyre"), out=out)
    assert torch.equal(out.cpu(), torch.eye(2))
    assert torch.equal(on_card[1:].cpu(), large[1:])


def test_small_views_move_little(large):
    on_card = large.to("spyre")
    torch.spyre.synchronize()
    with card_of().recording() as commands:
        on_card[6].lgamma_()
        torch.spyre.synchronize()
    assert 0 < commands.txpci_bytes < large.numel() // 8
