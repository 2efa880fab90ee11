"""Writes to memory that overlaps: refused, or done, as on the CPU."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.eager.overlap import overlap_check
from spyre.torch_backend.program.operations import recorded_by


def ones(*sizes, device):
    return torch.ones(sizes, device=device)


def index(*values, device):
    return torch.tensor(values, device=device)


WRITES = {
    "add to its neighbour": lambda y, d: y[1:].add_(y[:-1]),
    "add into its neighbour": lambda y, d: torch.add(y[:-1], 1, out=y[1:]),
    "add a part of it": lambda y, d: y[:4].add_(y[:1]),
    "add itself": lambda y, d: y.add_(y),
    "add another part": lambda y, d: y[:4].add_(y[4:]),
    "add what lies between": lambda y, d: y[::2].mul_(y[1::2]),
    "add to repeated": lambda y, d: y[:1].expand(4).add_(1),
    "add to overlapping": lambda y, d: y.as_strided((3, 3), (2, 1)).add_(1),
    "copy to its neighbour": lambda y, d: y[1:].copy_(y[:-1]),
    "copy backward": lambda y, d: y[:-1].copy_(y[1:]),
    "copy itself": lambda y, d: y.copy_(y),
    "copy transposed": lambda y, d: y[:4].view(2, 2).copy_(y[:4].view(2, 2).t()),
    "copy to repeated": lambda y, d: y[:1].expand(4).copy_(torch.arange(4.0, device=d)),
    "copy from the host to repeated": lambda y, d: y[:1].expand(4).copy_(torch.arange(4.0)),
    "copy to overlapping": lambda y, d: y.as_strided((3, 3), (2, 1)).copy_(ones(3, 3, device=d)),
    "assign": lambda y, d: y.__setitem__(slice(1, None), y[:-1]),
    "fill repeated": lambda y, d: y[:1].expand(4).fill_(5),
    "fill overlapping": lambda y, d: y.as_strided((3, 3), (2, 1)).fill_(5),
    "zero repeated": lambda y, d: y[:1].expand(4).zero_(),
    "clamp repeated": lambda y, d: y[:1].expand(4).clamp_(3),
    "relu repeated": lambda y, d: y[:1].expand(4).relu_(),
    "gelu into its neighbour": lambda y, d: torch._C._nn.gelu(y[:4], out=y[1:5]),
    "neg between": lambda y, d: torch.neg(y[::2], out=y[1::2]),
    "exp transposed": lambda y, d: torch.exp(y.view(2, 4).t(), out=y.view(4, 2)),
    "where into a part": lambda y, d: torch.where(y[:4] > 0, y[:4], y[4:], out=y[1:5]),
    "addcmul": lambda y, d: y[1:5].addcmul_(y[:4], y[:4]),
    "cumsum": lambda y, d: torch.cumsum(y[:-1], 0, out=y[1:]),
    "cat": lambda y, d: torch.cat([y[:2], y[2:4]], out=y[1:5]),
    "cat apart": lambda y, d: torch.cat([y[:2], y[2:4]], out=y[4:]),
    "gather": lambda y, d: torch.gather(y[:4], 0, index(0, 1, device=d), out=y[1:3]),
    "index_select": lambda y, d: torch.index_select(y[:4], 0, index(0, 1, device=d), out=y[1:3]),
    "sort": lambda y, d: torch.sort(y[:4], out=(y[1:5], index(0, 0, 0, 0, device=d))),
    "sum": lambda y, d: torch.sum(y.view(2, 4), 0, out=y[:4]),
    "mm apart": lambda y, d: torch.mm(y[:4].view(2, 2), y[:4].view(2, 2), out=y[4:].view(2, 2)),
    "eye": lambda y, d: torch.eye(2, out=y[:1].expand(2, 2)),
    "arange": lambda y, d: torch.arange(4, out=y[:1].expand(4)),
    "tril": lambda y, d: y[:1].expand(4, 4).tril_(),
    "masked_fill": lambda y, d: y[:1].expand(4).masked_fill_(ones(4, device=d) > 0, 2),
    "index_add": lambda y, d: y[:1].expand(4).index_add_(0, index(0, device=d), ones(1, device=d)),
    "foreach": lambda y, d: torch._foreach_add_([y[:1].expand(4)], 1),
}


def outcome(write, device):
    tensor = torch.arange(1.0, 9.0).to(device)
    try:
        write(tensor, device)
    except RuntimeError as error:
        return str(error).partition("\n")[0], tensor.tolist()
    return "", tensor.tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRITES)
def test_as_on_the_cpu(name):
    """Twice: the second call uses the cached verdict."""
    expected = outcome(WRITES[name], "cpu")
    assert outcome(WRITES[name], "spyre") == expected
    assert outcome(WRITES[name], "spyre") == expected


def test_other_views_of_one_storage_run_on_the_card():
    torch.spyre.reset_fallbacks()
    x = torch.ones(4, 64, device="spyre")
    x[:, :32].mul_(x[:, 32:] + 1)
    x[:, :32].add_(x[:, 32:])
    results = torch.empty(3, device="spyre"), torch.empty(3, dtype=torch.int64, device="spyre")
    torch.topk(x[0], 3, out=results)
    assert not torch.spyre.fallbacks()
    assert torch.equal(x.cpu()[:, :32], torch.full((4, 32), 3.0))


def shifted(y):
    y = y * 2
    y[1:].copy_(y[:-1])
    return y


def added_to_repeated(y):
    y[:1].expand(4).add_(1)
    return y


def assigned(y):
    y[1:] = y[:-1]
    return y


def into_its_neighbour(y):
    return torch.add(y[:-1], 1, out=y[1:])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [shifted, added_to_repeated, assigned, into_its_neighbour])
def test_compiled_functions_refuse_it_too(function, dynamic):
    torch.compiler.reset()
    compiled = torch.compile(function, dynamic=dynamic)
    for run in (function, compiled):
        with pytest.raises(RuntimeError, match="single memory location"):
            run(torch.ones(80, device="spyre"))


def test_compiled_functions_write_to_other_parts():
    def halves(y):
        y[:, :32].mul_(y[:, 32:] + 1)
        y[:, :32] += y[:, 32:]
        return y

    results = [f(torch.ones(4, 64, device="spyre")) for f in (halves, torch.compile(halves))]
    assert torch.equal(results[0].cpu(), results[1].cpu())


class Traced(torch.Tensor):
    """A tensor whose strides cannot be looked at, as those of symbols while a graph is traced."""

    def is_contiguous(self, *_, **__):
        raise RuntimeError("not tracked")


def test_traced_tensors_are_not_looked_at():
    written = torch.zeros(3).as_subclass(Traced)
    check = overlap_check(torch.ops.aten.add_.Tensor)
    with recorded_by(lambda *_: None):
        assert check((written, written), {}) is False
    with pytest.raises(RuntimeError, match="not tracked"):
        check((written, written), {})


def test_results_of_traced_tensors_that_share_memory():
    """Their sizes are compared as numbers: the symbols of aliases are not traced."""

    def function(x, y):
        rows = torch.nn.functional.embedding(torch.tensor([0, 0], device=y.device), y)
        return rows, torch.cumsum(x, 0)

    x = torch.arange(96.0).reshape(3, 32).half().to("spyre")
    torch._dynamo.reset()
    found = torch.compile(function, dynamic=True, fullgraph=True)(x, x[::3])
    for one, other in zip(found, function(x, x[::3]), strict=True):
        assert torch.equal(one.cpu(), other.cpu())
