"""Wrong arguments: the card's error is the CPU's; arguments the CPU accepts are checked once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from spyre.torch_backend.eager import dispatch

HALF, FLOAT, WORD = torch.float16, torch.float32, torch.int64


def zeros(*sizes, dtype=FLOAT, device):
    return torch.zeros(sizes, dtype=dtype, device=device)


def heads(*sizes, device, dtype=FLOAT):
    return zeros(1, *sizes, dtype=dtype, device=device)


CALLS = {
    "layer_norm of another size": lambda x, d: F.layer_norm(x, (5,)),
    "layer_norm of the first dim": lambda x, d: F.layer_norm(x, (3,)),
    "layer_norm of too many dims": lambda x, d: F.layer_norm(x, (2, 3, 4)),
    "layer_norm of as many elements": lambda x, d: F.layer_norm(x, (6, 2)),
    "cumsum with out": lambda x, d: torch.cumsum(x, 5, out=zeros(3, 4, device=d)),
    "index_select by a matrix": lambda x, d: x.index_select(0, zeros(2, 2, dtype=WORD, device=d)),
    "embedding of a vector": lambda x, d: F.embedding(zeros(2, dtype=WORD, device=d), x[0]),
    "mm of two dtypes": lambda x, d: torch.mm(x, x.t().half()),
    "bmm of two dtypes": lambda x, d: torch.bmm(x[None], x.t()[None].half()),
    "linear of two dtypes": lambda x, d: F.linear(x, x.half()),
    "linear with a bias of another": lambda x, d: F.linear(x, x, zeros(3, dtype=HALF, device=d)),
    "mm to another dtype": lambda x, d: torch.mm(x, x.t(), out=zeros(3, 3, dtype=HALF, device=d)),
    "bmm to another dtype": lambda x, d: torch.bmm(
        x[None], x.t()[None], out=zeros(1, 3, 3, dtype=HALF, device=d)
    ),
    "addmm of a wide bias": lambda x, d: torch.addmm(
        zeros(2, 3, 3, device=d), x, x.t(), out=zeros(3, 3, device=d)
    ),
    "addmv of a matrix": lambda x, d: torch.addmv(zeros(2, 3, device=d), x, x[0]),
    "dot of unlike sizes": lambda x, d: torch.dot(x[0], x[0, :3]),
    "softmax to another dtype": lambda x, d: torch.softmax(
        x, 0, out=zeros(3, 4, dtype=HALF, device=d)
    ),
    "where to another dtype": lambda x, d: torch.where(
        x > 0, x, x, out=zeros(3, 4, dtype=HALF, device=d)
    ),
    "1 - bool": lambda x, d: 1 - (x > 0),
    "rsub of True": lambda x, d: torch.rsub(x, True),
    "relu_ of an empty bool": lambda x, d: torch.relu_(zeros(0, dtype=torch.bool, device=d)),
    "copy_ of nothing": lambda x, d: zeros(2, 3, device=d).copy_(zeros(0, device=d)),
    "copy_ to nothing": lambda x, d: zeros(2, 0, device=d).copy_(zeros(3, 0, device=d)),
    "copy_ from the CPU to nothing": lambda x, d: zeros(2, 0, device=d).copy_(
        zeros(3, 0, device="cpu")
    ),
    "copy_ to the CPU": lambda x, d: zeros(2, 3, device="cpu").copy_(x),
    "copy_ from the CPU": lambda x, d: zeros(2, 3, device=d).copy_(x.cpu()),
    "copy_ of other sizes": lambda x, d: zeros(2, 3, device=d).copy_(x),
    "copy_ of a dim more": lambda x, d: zeros(4, device=d).copy_(x),
    "copy_ of other sizes and dtype": lambda x, d: zeros(2, 3, device=d).copy_(x.half()),
    "masked_fill_ by a wrong mask": lambda x, d: x.masked_fill_(zeros(5, device=d) > 0, 1.0),
    "a mask of another size": lambda x, d: x[zeros(5, device=d) == 0],
    "index_put_ of other sizes": lambda x, d: x.index_put_(
        (zeros(1, dtype=WORD, device=d),), zeros(7, device=d)
    ),
    "cat of other sizes": lambda x, d: torch.cat([x, x[:, :3]], 0),
    "attention by another mask": lambda x, d: F.scaled_dot_product_attention(
        *[heads(2, 3, 8, device=d)] * 3, attn_mask=zeros(5, 7, device=d)
    ),
    "attention by a mask of integers": lambda x, d: F.scaled_dot_product_attention(
        *[heads(2, 3, 8, device=d)] * 3, attn_mask=zeros(3, 3, dtype=WORD, device=d)
    ),
    "attention of other heads": lambda x, d: F.scaled_dot_product_attention(
        heads(4, 3, 8, device=d), *[heads(2, 3, 8, device=d)] * 2
    ),
    "attention of another width": lambda x, d: F.scaled_dot_product_attention(
        heads(2, 3, 8, device=d), heads(2, 3, 7, device=d), heads(2, 3, 8, device=d)
    ),
    "conv2d of stride 0": lambda x, d: F.conv2d(
        zeros(1, 2, 5, 5, device=d), zeros(3, 2, 3, 3, device=d), stride=0
    ),
    "conv2d of other channels": lambda x, d: F.conv2d(
        zeros(1, 4, 5, 5, device=d), zeros(3, 2, 3, 3, device=d)
    ),
    "conv2d of another bias": lambda x, d: F.conv2d(
        zeros(1, 2, 5, 5, device=d), zeros(3, 2, 3, 3, device=d), zeros(4, device=d)
    ),
    "conv_transpose2d of a wide output padding": lambda x, d: F.conv_transpose2d(
        zeros(1, 2, 2, 2, device=d), zeros(2, 2, 3, 3, device=d), output_padding=3
    ),
    "index_select onto itself, empty": lambda x, d: torch.index_select(
        (e := zeros(0, device=d)), 0, zeros(0, dtype=WORD, device=d), out=e
    ),
    "batch_norm of a running mean of rank 0": lambda x, d: torch.ops.aten.native_batch_norm(
        x, x[0], x[0], x[0, 0], x[0], True, 0.1, 1e-5
    ),
    "batch_norm of a running variance of rank 2": lambda x, d: torch.ops.aten.native_batch_norm(
        x, x[0], x[0], x[0], x[:1], False, 0.1, 1e-5
    ),
    "isin into floats": lambda x, d: torch.isin(x, x, out=zeros(3, 4, dtype=HALF, device=d)),
    "zeros beyond all bytes": lambda x, d: torch.zeros(2**40, 2**40, device=d),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_error_is_the_cpus(call):
    errors = []
    for device in ("cpu", "spyre"):
        with pytest.raises((RuntimeError, IndexError)) as raised:
            call(torch.ones(3, 4, device=device), device)
        errors.append((raised.type, str(raised.value)))
    assert errors[0] == errors[1]


def test_a_refused_call_changes_nothing():
    out = torch.full((3, 3), 7.0, dtype=HALF, device="spyre")
    x = torch.ones(3, 4, device="spyre")
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype float"):
        torch.mm(x, x.t(), out=out)
    assert (out.cpu() == 7).all()


def test_arguments_are_checked_once_for_all_calls_with_their_sizes_and_dtypes(monkeypatch):
    asked = []
    monkeypatch.setattr(dispatch, "refuses", lambda op, *_: asked.append(str(op)))
    for _ in range(3):
        table, index = torch.ones(13, 71, device="spyre"), torch.zeros(5, dtype=WORD)
        F.embedding(index.to("spyre"), table)
    assert asked.count("aten.embedding.default") == 1


def test_floats_of_a_call_are_no_new_signature(monkeypatch):
    asked = []
    monkeypatch.setattr(dispatch, "refuses", lambda op, *_: asked.append(str(op)))
    x = torch.ones(3, 67, device="spyre")
    for step in range(1, 5):
        x.add_(x, alpha=1 / step)
        x.mul_(0.5 * step)
    assert asked.count("aten.add.out") == asked.count("aten.mul.out") == 1


def test_composed_attention_is_checked_once_and_draws_nothing(monkeypatch):
    asked = []
    q = heads(2, 5, 8, device="spyre")
    before = torch.random.get_rng_state()
    F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert torch.equal(before, torch.random.get_rng_state())
    monkeypatch.setattr(dispatch, "refuses", lambda op, *_: asked.append(str(op)))
    F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert "aten.scaled_dot_product_attention.default" not in asked


def test_an_exponent_decides_which_kernel_runs():
    x = torch.full((3, 5), 4.0, device="spyre")
    assert (x.pow(2.0).cpu() == 16).all()
    assert (x.pow(0.5).cpu() == 2).all()
    assert torch.allclose(x.pow(1.7).cpu(), torch.tensor(4.0).pow(1.7), rtol=1e-3)


@pytest.mark.parametrize("numbers", [(9,), (9, False), (8, True, 5.0), (1,), (0,)])
@pytest.mark.parametrize("dtype", [None, FLOAT, HALF])
def test_kaiser_window_is_torchs(numbers, dtype):
    made = torch.kaiser_window(*numbers, dtype=dtype, device="spyre")
    wanted = torch.kaiser_window(*numbers, dtype=dtype)
    assert (made.device.type, made.dtype) == ("spyre", wanted.dtype)
    torch.testing.assert_close(made.cpu(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1, 5])
def test_batch_norm_reads_no_statistics_beyond_their_end(size):
    x, other = torch.ones(3, 4, device="spyre"), torch.ones(size, device="spyre")
    with pytest.raises(RuntimeError, match=rf"tensor a \({size}\) must match .* tensor b \(4\)"):
        torch.ops.aten.native_batch_norm(x, x[0], x[0], other, x[0], True, 0.1, 1e-5)
