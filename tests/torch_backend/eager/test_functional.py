"""Functional variants that make their result themselves agree with ATen's way in results, sizes,
strides, dtypes and errors.
"""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.eager.dispatch import plain_dtype
from spyre.torch_backend.eager.registry import FUNCTIONAL_VARIANTS
from spyre.torch_backend.tensors import relayout
from tests.torch_backend.eager.agreement import numbers

WRONG = {
    "add": (torch.add, (2, 3), (4,)),
    "maximum": (torch.maximum, (2, 3), (4,)),
    "mm": (torch.mm, (2, 3), (4, 5)),
    "mm of other ranks": (torch.mm, (2, 3, 4), (2, 4, 3)),
    "bmm": (torch.bmm, (2, 3, 4), (3, 4, 5)),
    "bmm inside": (torch.bmm, (2, 3, 4), (2, 5, 6)),
    "addmm bias": (torch.addmm, (4,), (2, 3), (3, 5)),
    "addmm": (torch.addmm, (2, 5), (2, 3), (4, 5)),
    "softmax": (lambda x: torch.softmax(x, 5), (2, 3)),
    "sum": (lambda x: x.sum(2), (2, 3)),
    "sum of a dim twice": (lambda x: x.sum((0, -2)), (2, 3)),
    "mean": (lambda x: x.mean(-3), (2, 3)),
    "amax": (lambda x: x.amax((1, 1)), (2, 3)),
    "cat": (lambda *x: torch.cat(x), (2, 3), (2, 4)),
    "cat ranks": (lambda *x: torch.cat(x), (2, 3), (2, 3, 4)),
    "cat dim": (lambda *x: torch.cat(x, 2), (2, 3), (2, 3)),
    "gelu": (lambda x: torch.nn.functional.gelu(x, approximate="no"), (2, 3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_atens_errors(name):
    function, *shapes = WRONG[name]
    host = [torch.rand(shape).half() for shape in shapes]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(*host)
    with pytest.raises(type(expected.value)) as found:
        function(*(t.to("spyre") for t in host))
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


NUMBERS = {
    "sum": lambda t: t + 1,
    "product": lambda t: t * 2.5,
    "quotient": lambda t: t / 3,
    "reciprocal": lambda t: 1 / (t + 1),
    "truth": lambda t: t * True,
    "scaled": lambda t: torch.add(t, 2, alpha=3),
    "CPU number": lambda t: t + torch.tensor(1.5),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor.half,
        torch.Tensor.float,
        torch.Tensor.int,
        torch.Tensor.long,
        lambda t: t.half().t(),
        lambda t: t.float()[:, ::2],
        lambda t: t.half()[1, 1],
    ],
    ids=["half", "float", "int", "long", "transposed", "sliced", "rank 0"],
)
def test_numbers_promote_as_on_the_host(name, make):
    host = make(torch.arange(12).reshape(3, 4))
    expected, found = NUMBERS[name](host), NUMBERS[name](host.to("spyre"))
    assert (found.dtype, found.shape, found.stride()) == (
        expected.dtype,
        expected.shape,
        expected.stride(),
    )
    torch.testing.assert_close(found.cpu(), expected, rtol=2**-8, atol=2**-8)


def test_plain_operands():
    half, wide = torch.rand(2, 3).half().to("spyre"), torch.rand(2, 3).to("spyre")
    assert plain_dtype((half, half)) is torch.float16
    assert plain_dtype((half, 2)) is torch.float16
    assert plain_dtype((half, torch.tensor(2.0))) is torch.float16
    assert plain_dtype((half, wide)) is None
    assert plain_dtype((half, half.t())) is None
    assert plain_dtype((half, half.t()), any_strides=True) is torch.float16
    assert plain_dtype((half, 2j)) is None
    assert plain_dtype((half[0, 0], torch.tensor(2.0, dtype=torch.float64))) is None
    assert plain_dtype((half.int(),)) is None
    assert plain_dtype((half[:0],)) is None


def test_results_need_no_fallback_and_are_contiguous():
    torch.spyre.reset_fallbacks()
    a, b = torch.rand(1, 70).half(), torch.rand(5, 1).half()
    found = a.to("spyre") + b.to("spyre")
    assert found.is_contiguous()
    torch.testing.assert_close(found.cpu(), a + b, rtol=2**-8, atol=2**-8)
    assert not torch.spyre.fallbacks()


def test_every_variant_is_an_operation():
    from spyre.torch_backend.compat import operator

    assert all(operator(name) and operator(out) for name, out in FUNCTIONAL_VARIANTS.items())


def both(*shape):
    host = torch.rand(shape).half()
    return host, host.to("spyre")


def same(card, host):
    assert card.shape == host.shape
    assert card.dtype == host.dtype
    assert torch.allclose(card.cpu().float(), host.float(), rtol=6e-3, atol=6e-3)


def test_a_repeated_call_takes_its_own_tensors():
    # each of these is the second call with its key, or must not take the record of the one before
    (a, x), (b, y) = both(4, 64), both(4, 64)
    for _ in range(2):
        same(x - x, a - a)
        same(x - y, a - b)
        same(y - x, b - a)
    (c, z) = both(64, 64)
    for bias, left in ((y, x), (x, x), (x, y)):
        same(torch.addmm(bias, left, z), torch.addmm(bias.cpu(), left.cpu(), c))


def test_a_repeated_call_with_another_number():
    host, x = both(4, 64)
    for number in (1, True, 1.0, 2, 2.0, 0.5, 0.0, -0.0, float("inf"), float("-inf")):
        for _ in range(2):
            same(x * number, host * number)
            same(torch.reciprocal(x * 0.0 + number), torch.reciprocal(host * 0.0 + number))


def test_a_repeated_call_over_parts():
    host, x = both(8, 64)
    for rows in (slice(0, 4), slice(4, 8), slice(2, 6)):
        for _ in range(2):
            same(x[rows] + x[:4], host[rows] + host[:4])
    for columns in (slice(0, 32), slice(32, 64)):
        same(x[:, columns] + 1, host[:, columns] + 1)


ATENS_WAY = {
    "transposed": lambda x, y: x.t() + y.t(),
    "transposed beside plain": lambda x, y: x.t() * y,
    "columns": lambda x, y: x[:, 64:] - y[:, :64],
    "channels last": lambda x, y: (
        x.view(4, 32, 2, 64).to(memory_format=torch.channels_last)
        * y.view(4, 32, 2, 64).to(memory_format=torch.channels_last)
    ),
    "expanded": lambda x, y: x + y[:1].expand(128, 128),
    "joined columns": lambda x, y: torch.cat([x[:, :64], y[:, 64:]], 1),
    "joined rows of columns": lambda x, y: torch.cat([x[:, :64], y[:, 64:]]),
    "number": lambda x, y: x.t() * 2,
    "integers": lambda x, y: x.ge(0).int() + y.ge(0).int(),
    "function": lambda x, y: torch.exp(x.t()),
    "maximum": lambda x, y: torch.maximum(x.t(), y),
    "softmax": lambda x, y: torch.softmax(x.t(), 1),
}


@pytest.mark.parametrize("name", ATENS_WAY)
def test_repeated_calls_do_not_go_atens_way(name, monkeypatch):
    operation = ATENS_WAY[name]
    (a, x), (b, y), (c, z) = both(128, 128), both(128, 128), both(128, 128)
    first, expected = operation(x, y), operation(a, b)
    monkeypatch.setattr("spyre.torch_backend.eager.dispatch._as_aten", None)
    for found, wanted in (
        (first, expected),
        (operation(x, y), expected),
        (operation(z, x), operation(c, a)),
    ):
        same(found, wanted)
        assert found.stride() == wanted.stride()


def test_repeated_calls_over_memory_that_operands_share():
    (a, x), (b, y) = both(8, 64), both(8, 64)
    for _ in range(2):
        same(x[:4].t() - x[4:].t(), a[:4].t() - a[4:].t())
        same(x[:4].t() - y[4:].t(), a[:4].t() - b[4:].t())
        same(y[:4].t() - x[4:].t(), b[:4].t() - a[4:].t())
        same(torch.cat([x[:4].t(), x[4:].t()]), torch.cat([a[:4].t(), a[4:].t()]))
        same(torch.cat([x[:4].t(), y[4:].t()]), torch.cat([a[:4].t(), b[4:].t()]))


def test_repeated_calls_promote_as_the_defaults_say():
    a, b = torch.arange(1, 65).view(8, 8), torch.arange(65, 129).view(8, 8)
    x, y = a.to("spyre"), b.to("spyre")
    for dtype in (torch.float32, torch.float16, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            for _ in range(2):
                assert (x.t() / y.t()).dtype == (a.t() / b.t()).dtype == dtype
                assert (x.t() * 0.5).dtype == dtype
        finally:
            torch.set_default_dtype(torch.float32)


def test_a_repeated_call_after_others_were_written():
    host, x = both(4, 64)
    results = [x + 1 for _ in range(3)]
    results[0].zero_()
    same(results[1], host + 1)
    x.mul_(2)
    same(x + 1, host * 2 + 1)


def test_errors_of_repeated_calls_name_the_operation(monkeypatch):
    x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
    x + x, x + x

    def fail(*_):
        raise RuntimeError("no room")

    monkeypatch.setattr("spyre.torch_backend.eager.launch.allocate_based", fail)
    with pytest.raises(RuntimeError, match="no room") as raised:
        x + x
    assert raised.value.__notes__ == ["in aten.add.Tensor on spyre"]


def test_products_make_their_results_of_any_strides(monkeypatch):
    monkeypatch.setattr("spyre.torch_backend.eager.dispatch.COMPOSITE_KEYS", None)  # not ATen's way
    (a, x), (b, w), (c, y) = both(3, 70), both(5, 70), both(2, 70, 3)
    for _ in range(2):
        for card, host in (
            (torch.mm(x, w.t()), torch.mm(a, b.t())),
            (torch.mm(x[:, ::2], w[:2, ::2].t()), torch.mm(a[:, ::2], b[:2, ::2].t())),
            (torch.addmm(x[:, :5], x, w.t()), torch.addmm(a[:, :5], a, b.t())),
            (torch.bmm(y.transpose(1, 2), y), torch.bmm(c.transpose(1, 2), c)),
            (torch.bmm(x.expand(2, 3, 70), y), torch.bmm(a.expand(2, 3, 70), c)),
        ):
            assert card.is_contiguous()
            same(card, host)


def test_repeated_calls_with_lists():
    (a, x), (b, y) = both(4, 64), both(4, 64)
    for _ in range(2):
        same(torch.cat([x, y]), torch.cat([a, b]))
        same(torch.cat([y, x]), torch.cat([b, a]))
        same(torch.cat([x, y], 1), torch.cat([a, b], 1))
        same(torch.cat([x, y, y]), torch.cat([a, b, b]))
        same(torch.cat([y, x, y]), torch.cat([b, a, b]))
        same(torch.stack([x, y]), torch.stack([a, b]))
        for dims, keep in (
            ((0,), False),
            ((1,), False),
            ((0, 1), True),
            ((-1,), True),
            ([], False),
        ):
            same(x.sum(dims, keep), a.sum(dims, keep))
            same(x.mean(dims, keep), a.mean(dims, keep))
            same(x.amax(dims, keep), a.amax(dims, keep))
        assert x.sum(1, dtype=torch.float32).dtype == torch.float32


def test_repeated_calls_into_a_target():
    def check(operation):
        """Over tensors of the same kind, three times in a row."""
        for _ in range(3):
            (a, x), (b, y), (c, z) = both(8, 64), both(8, 64), both(8, 64)
            same(operation(x, y, z), operation(a, b, c))
            for card, host in ((x, a), (y, b), (z, c)):
                same(card, host)

    check(lambda x, y, z: x.add_(y))
    check(lambda x, y, z: x.add_(x))
    check(lambda x, y, z: x.mul_(y).mul_(2).sub_(z, alpha=2))
    check(lambda x, y, z: torch.add(x, y, out=z))
    check(lambda x, y, z: torch.add(x, y, out=y))
    check(lambda x, y, z: torch.add(x, x, out=y))
    check(lambda x, y, z: x[:4].add_(y[4:]))
    check(lambda x, y, z: x[:4].add_(x[4:]))
    check(lambda x, y, z: x[1:5].copy_(torch.add(x[:4], y[:4])))
    check(lambda x, y, z: torch.sum(x, 1, out=z[:, 0]))
    check(lambda x, y, z: torch.cat([x[:4], y[4:]], out=z))
    check(lambda x, y, z: torch.mm(x, y.t(), out=z[:, :8]))


ONE_LAUNCH = {
    "half of a head turned": lambda x, y, i: -x[:, 32:],
    "columns within sticks": lambda x, y, i: x[:, 5:40] + y[:, 20:55],
    "columns in another dtype": lambda x, y, i: x[:, 61:].float(),
    "softmax of columns": lambda x, y, i: torch.softmax(x[:, 7:], 1),
    "product of columns": lambda x, y, i: x[:, 3:43] @ y[:, 8:48].t(),
    "columns turned": lambda x, y, i: x[:, 1:].t() * 2,
    "rows written": lambda x, y, i: x.index_copy_(0, i, y[:2]),
    "rows read": lambda x, y, i: torch.nn.functional.embedding(i, x),
    "rows selected": lambda x, y, i: x.index_select(0, i),
    "attention": lambda x, y, i: torch.nn.functional.scaled_dot_product_attention(
        x.view(1, 2, 4, 64), y.view(1, 2, 4, 64), x.view(1, 2, 4, 64)
    ),
    "comparison": lambda x, y, i: x <= y,
    "cosine": lambda x, y, i: x.cos(),
    "copy": lambda x, y, i: x.copy_(y),
}


@pytest.mark.parametrize("name", ONE_LAUNCH)
def test_repeated_calls_are_one_launch(name, monkeypatch):
    operation = ONE_LAUNCH[name]
    host, index = torch.tensor([5, 2]), torch.tensor([5, 2]).to("spyre")
    monkeypatch.setattr("spyre.torch_backend.eager.launch.relayout", None)
    for turn in range(4):
        if turn == 3:  # by the cached data of earlier calls
            monkeypatch.setattr("spyre.torch_backend.eager.launch._key", None)
        a, b = numbers(8, 64, seed=turn), numbers(8, 64, seed=-turn)
        x, y = a.to("spyre"), b.to("spyre")
        with torch.spyre.counting() as counted:
            found = operation(x, y, index)
        same(found, operation(a, b, host))
        assert counted.launches == 1


def test_columns_that_need_much_room_are_copied(monkeypatch):
    copied = []
    monkeypatch.setattr(
        "spyre.torch_backend.eager.launch.relayout", lambda x: copied.append(x) or relayout(x)
    )
    (a, x) = both(40000)
    same(x[1:] + 1, a[1:] + 1)
    assert len(copied) == 1


def test_a_copy_of_a_sequence_is_no_copy_of_another():
    for _ in range(3):
        kept = torch.arange(8, dtype=torch.float32, device="spyre")
        (a, x) = both(8)
        same(x.float().clone(), a.float())
        assert kept.cpu().tolist() == list(range(8))
        kept.zero_()


def test_a_repeated_call_resizes_its_target():
    for _ in range(3):
        (a, x), (b, y) = both(4, 64), both(2, 3)
        with pytest.warns(UserWarning, match="resized"):
            same(torch.add(x, x, out=y), torch.add(a, a, out=b))
        same(y, b)
        empty = torch.empty(0, dtype=torch.float16, device="spyre")
        same(torch.add(x, x, out=empty), a + a)


def test_a_repeated_integer_call_into_a_target():
    for number in (3, 7, 3):
        host = torch.arange(64, dtype=torch.int32)
        card = host.to("spyre")
        assert card.add_(number).mul_(card).cpu().equal(host.add_(number).mul_(host))


COMPOSITES = {
    "linear": lambda x, y, w: torch.nn.functional.linear(x, w),
    "linear with a bias": lambda x, y, w: torch.nn.functional.linear(x, w, y[0, 0]),
    "linear of one row": lambda x, y, w: torch.nn.functional.linear(x[0, 1], w),
    "matmul": lambda x, y, w: x @ w,
    "matmul of one row": lambda x, y, w: x[0, 1] @ w,
    "matmul with one column": lambda x, y, w: x @ w[:, 1],
    "matmul of many": lambda x, y, w: x[:, None] @ w[None],
    "attention": lambda x, y, w: torch.nn.functional.scaled_dot_product_attention(
        *(t.view(1, 1, -1, 64) for t in (w, x, y))
    ),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_repeated_composition_is_one_launch_over_its_own_tensors(name):
    function = COMPOSITES[name]
    (a, x), (b, y), (c, w) = both(1, 4, 64), both(1, 4, 64), both(64, 64)
    for first, second, on_host in ((x, y, (a, b)), (x, y, (a, b)), (y, x, (b, a))):
        with torch.spyre.counting() as counted:
            found = function(first, second, w)
        expected = function(*(t.float() for t in (*on_host, c)))
        assert (found.shape, found.stride()) == (expected.shape, expected.stride())
        assert torch.allclose(found.cpu().float(), expected, rtol=2e-2, atol=2e-2)
        assert counted.launches == 1
    negative = torch._neg_view(x)
    assert torch.equal(function(negative, y, w).cpu(), function(-x, y, w).cpu())
    x.requires_grad_()
    function(x, y, w).sum().backward()
    assert x.grad.shape == x.shape


def test_repeated_fills_and_sequences():
    for number in (0, 3, -2.5, True, 0.0, -0.0):
        for _ in range(2):
            x = torch.rand(4, 65).half().to("spyre")
            assert torch.equal(x[:, 1:].fill_(number).cpu(), torch.full((4, 64), number).half())
            assert x[:, 0].any()
            assert not x.zero_().any()
    for dtype in (None, torch.float16, torch.int32):
        for bounds in ((5,), (2, 9), (2, 9, 3), (0.5, 3), (0,)):
            for _ in range(3):
                found = torch.arange(*bounds, dtype=dtype, device="spyre")
                expected = torch.arange(*bounds, dtype=dtype)
                assert found.dtype is expected.dtype
                assert torch.equal(found.cpu(), expected)
                found += 1  # not what the next one is copied from
