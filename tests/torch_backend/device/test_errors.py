"""Errors a PyTorch user meets: mixed devices, fallbacks, the environment."""

from __future__ import annotations

import pytest
import torch

from spyre.errors import SpyreError, UnsupportedError
from tests.torch_backend.processes import PROLOGUE, run, run_bare

MIXED = {
    "add": lambda x, h: x + h,
    "add to the host": lambda x, h: h + x,
    "mm": lambda x, h: torch.mm(x, h.t()),
    "mm from the host": lambda x, h: torch.mm(h, x.t()),
    "cat": lambda x, h: torch.cat([x, h]),
    "embedding": lambda x, h: torch.nn.functional.embedding(torch.tensor([0, 1]), x),
    "linear": lambda x, h: torch.nn.functional.linear(x, h),
    "where": lambda x, h: torch.where(x > 0, x, h),
    "in place": lambda x, h: x.add_(h),
    "out": lambda x, h: torch.add(x, x, out=torch.empty(4, 6)),
    "gather": lambda x, h: x.gather(0, torch.zeros(1, 6, dtype=torch.long)),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices(card, host, name):
    with pytest.raises(RuntimeError, match=r"on the same device|is on cpu"):
        MIXED[name](card, host)


def test_words_of_torch(card, host):
    for mix in (lambda: card + host, lambda: torch.mm(card, host.t())):
        with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device"):
            mix()


def test_numbers_from_the_host_are_fine(card, host):
    assert torch.equal((card + torch.tensor(2.0)).cpu(), host + 2)
    assert torch.equal(card[torch.tensor([1])].cpu(), host[[1]])
    assert torch.equal(
        card.masked_fill(card > 3, torch.tensor(0.0)).cpu(), host.clamp(max=3) % 4 * (host <= 3)
    )


def test_every_error_is_a_runtime_error():
    assert issubclass(SpyreError, RuntimeError)


def test_fallback_can_be_an_error(card, monkeypatch):
    monkeypatch.setenv("SPYRE_FALLBACK", "error")
    with pytest.raises(UnsupportedError, match="SPY900"):
        torch.linalg.cholesky(card[:, :4] @ card[:, :4].t())


def test_fallback_warns_once_where_it_was_called():
    code = """
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            x = torch.zeros(3, 3).to("spyre")
            torch.linalg.det(x), torch.linalg.det(x)
        found = [w for w in seen if "linalg" in str(w.message)]
        print(len(found), found[0].filename, "SPYRE_FALLBACK=silent" in str(found[0].message))
    """
    assert "1 <string> True" in run(code, SPYRE_FALLBACK="warn")


def test_fallbacks_are_counted(card):
    torch.spyre.reset_fallbacks()
    torch.linalg.det(card[:, :4])
    assert sum(torch.spyre.fallbacks().values()) > 0
    torch.spyre.reset_fallbacks()
    assert torch.spyre.fallbacks() == {}


def test_wrong_shapes_are_torchs_error(card):
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.mm(card, card)
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        card + torch.ones(5, device="spyre")
    with pytest.raises(IndexError):
        card[7]


def test_other_memory_formats_of_tensors(card):
    with pytest.raises(NotImplementedError, match="sparse tensors are not supported"):
        torch.empty(2, 2, layout=torch.sparse_coo, device="spyre")


def test_wrong_environment():
    code = """
        try:
            torch.ones(1, device="spyre")
        except RuntimeError as error:
            print(error)
    """
    assert "SPY805" in run(code, AIU_WORLD_SIZE="9")
    assert "SPY803" in run(code, FLEX_DEVICE="XF")


def test_second_backend():
    prologue = """
import torch, warnings
torch.utils.rename_privateuse1_backend("other")
from spyre.torch_backend import autoload
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    autoload()
    autoload()
"""
    code = """
        print([str(w.message) for w in seen])
        print(hasattr(torch, "spyre"), hasattr(torch.Tensor, "device_tensor_layout"))
        print(torch.device("other"))
    """
    printed = run_bare(code, prologue)
    assert printed.count("another backend, 'other', is registered as PrivateUse1") == 1
    assert "False False" in printed


def test_debug_log():
    code = """
        x = torch.ones(2, 2, device="spyre")
        (x @ x).cpu()
    """
    printed = run_bare(code, PROLOGUE, TORCH_SPYRE_DEBUG="1")
    assert "spyre.torch: empty.memory_format([2, 2]" in printed
    assert "mm" in printed
    assert "spyre.torch: _to_copy(float32[2, 2]@spyre:0, dtype=torch.float32" in printed
    assert run_bare(code, PROLOGUE, TORCH_SPYRE_DEBUG="0") == ""


def test_debug_log_goes_to_the_programs_handlers():
    prologue = (
        "import logging, sys; logging.basicConfig(format='mine %(message)s', stream=sys.stdout)"
    )
    code = """
        import torch
        from spyre.torch_backend import autoload
        autoload()
        torch.ones(2, device="spyre")
    """
    printed = run_bare(code, prologue + "\n", TORCH_SPYRE_DEBUG="1")
    assert "mine empty.memory_format([2]" in printed
    assert "spyre.torch:" not in printed


LOSSES = ["mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss", "kl_div", "soft_margin_loss"]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.filterwarnings("error::UserWarning")
def test_losses_do_not_warn(host, name, reduction):
    loss = getattr(torch.nn.functional, name)
    if name == "kl_div" and reduction == "mean":
        reduction = "batchmean"
    x = (host / 24).to("spyre").requires_grad_()
    found = loss(x, (host / 12).to("spyre"), reduction=reduction)
    found.sum().backward()
    expected = (host / 24).requires_grad_()
    value = loss(expected, host / 12, reduction=reduction)
    value.sum().backward()
    assert torch.allclose(found.cpu(), value)
    assert torch.allclose(x.grad.cpu(), expected.grad)


def test_arguments_that_belong_on_the_host():
    x = torch.rand(4, 5, 1, device="spyre")
    lengths = torch.tensor([5, 4, 3, 1])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    model = torch.nn.LSTM(1, 2, batch_first=True, device="spyre")
    back, found = torch.nn.utils.rnn.pad_packed_sequence(model(packed)[0], batch_first=True)
    assert back.shape == (4, 5, 2)
    assert torch.equal(found.cpu(), lengths)
    scores = torch.rand(6, 1, 4, device="spyre").log_softmax(-1)
    target = torch.tensor([[1, 2]], device="spyre")
    loss = torch.nn.functional.ctc_loss(scores, target, torch.tensor([6]), torch.tensor([2]))
    assert loss.device.type == "spyre"


def test_numbers_where_operators_take_tensors(card, host):
    index = torch.tensor([[0, 2, 1, 0, 3, 3]])
    found = torch.take_along_dim(card, index.to("spyre"), 0)
    assert torch.equal(found.cpu(), torch.take_along_dim(host, index, 0))
    assert torch.equal(torch.ops.aten.fmod.Scalar(card, 5).cpu(), host.fmod(5))
    assert (card.to(torch.uint8) * 2.5).dtype == torch.float32
    assert (card.half() * 2.5).dtype == torch.float16
