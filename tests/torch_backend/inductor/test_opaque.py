"""Operations about layouts within compiled kernels: the bits of eager mode, in one bundle."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.torch_backend.eager import launch as eager_run
from spyre.torch_backend.inductor.bundles import kernels
from spyre.torch_backend.inductor.bundles.kernel_op import operations_in
from tests.torch_backend.inductor.compiled_code import collected, compiled
from tests.torch_backend.processes import run


def drawn(*shape):
    return torch.randn(shape).half()


def indices(*shape, below):
    return torch.randint(0, below, shape)


def tensors(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def sliced(x, part):
    x = x * 2
    x[:, 3:5] = part
    return x + 1


def selected(x, row):
    x = x * 2
    x[3] = row
    return x + 1


def cached(cache, place, part):
    cache.index_copy_(1, place, part)
    return cache * 2


def put(cache, place, part):
    cache[:, place] = part
    return cache * 2


def masked(x):
    x = x * 2
    x[x > 1] = 0.5
    return x + 1


def taken_over(x, target):
    target.copy_(x * 2)
    return target + 1


def rope(q, cos, sin):
    return q * cos + torch.cat([-q[..., 32:], q[..., :32]], -1) * sin


def grown(keys, new, query):
    keys = torch.cat([keys, new * 2], 1)
    return keys, torch.softmax(query @ keys.transpose(1, 2), -1)


CASES = {
    "cat along sticks": (lambda a, b: torch.cat([a * 2, b], 1) + 1, (drawn(8, 70), drawn(8, 3))),
    "cat of rows": (lambda a, b: torch.cat([a * 2, b]) + 1, (drawn(3, 70), drawn(5, 70))),
    "cat of dtypes": (lambda a, b: torch.cat([a, b.float()]) * 2, (drawn(3, 70), drawn(5, 70))),
    "cat with nothing": (lambda a: torch.cat([a[:0], a, a], 0) * 2, (drawn(3, 70),)),
    "stack": (lambda a, b: torch.stack([a * 2, b], -1) + 1, (drawn(8, 16), drawn(8, 16))),
    "roll": (lambda a: (a * 2).roll(2, 0) + 1, (drawn(7, 100),)),
    "repeat": (lambda a: (a * 2).repeat(2, 1, 3) + 1, (drawn(7, 100),)),
    "pad": (lambda a: F.pad(a * 2, (1, 2, -1, 3), value=0.5) + 1, (drawn(7, 100),)),
    "slice written": (sliced, (drawn(8, 16), drawn(8, 2))),
    "row written": (selected, (drawn(8, 16), drawn(16))),
    "mask written": (masked, (drawn(8, 16),)),
    "embedding": (
        lambda w, i: F.embedding(i, w) * 2,
        (drawn(20, 64), torch.tensor([[1, 3], [0, 19]])),
    ),
    "one row": (lambda w, i: F.embedding(i, w) * 2, (drawn(20, 64), torch.tensor([3]))),
    "table of one row": (lambda w, i: w[i] * 2, (drawn(1, 64), torch.zeros(5, dtype=torch.int64))),
    "more indices than rows": (lambda w, i: w[i] + 1, (drawn(9, 70), indices(100, below=9))),
    "columns": (
        lambda x, i: x.index_select(1, i) + 1,
        (drawn(8, 100), indices(70, below=100)),
    ),
    "negative indices": (lambda x, i: x[i] + 1, (drawn(8, 100), torch.tensor([-1, 2, 3]))),
    "pairs of indices": (
        lambda x, i, j: x[i, j] + 1,
        (drawn(8, 100), torch.tensor([-1, 2, 3]), torch.tensor([1, 2, 99])),
    ),
    "gather along sticks": (
        lambda x, i: x.gather(1, i) * 2,
        (drawn(8, 100), indices(8, 5, below=100)),
    ),
    "gather of rows": (
        lambda x, i: x.gather(0, i) * 2,
        (drawn(8, 100), indices(5, 100, below=8)),
    ),
    "flip": (lambda x: (x * 2).flip(0) + 1, (drawn(7, 100),)),
    "topk": (lambda x: tuple((x * 2).topk(3)), (drawn(7, 100),)),
    "topk values": (lambda x: (x * 2).topk(3, 0).values + 1, (drawn(7, 100),)),
    "topk indices": (lambda x: (x * 2).topk(3).indices, (drawn(7, 40),)),
    "sort": (lambda x: tuple((x * 2).sort(0)), (drawn(7, 100),)),
    "max of a dim": (lambda x: tuple((x * 2).max(-1)), (drawn(7, 100),)),
    "argmin": (lambda x: (x * 2).argmin(0) + 1, (drawn(7, 100),)),
    "argmax of all": (lambda x: (x * 2).argmax(), (drawn(7, 10),)),
    "running sum": (lambda x: (x * 2).cumsum(-1) + 1, (drawn(7, 100),)),
    "running sum of integers": (lambda x: x.cumsum(0) + 1, (indices(9, 70, below=5),)),
    "numbers": (lambda x: x * 2 + torch.full_like(x, 0.5) + torch.zeros_like(x), (drawn(7, 100),)),
    "nothing but a number": (lambda x: torch.full_like(x, 0.5), (drawn(7, 100),)),
    "infinite": (lambda x: torch.cat([x, torch.full_like(x, float("-inf"))]), (drawn(7, 100),)),
    "counted": (
        lambda x: (x * 2 + torch.arange(16, device=x.device)) * 2,
        (drawn(8, 16),),
    ),
    "triangle": (lambda x: (x * 2).triu(1) + 1, (drawn(9, 16),)),
    "rope": (rope, (drawn(1, 4, 8, 64), drawn(8, 64), drawn(8, 64))),
    "embedding and norm": (
        lambda w, i, g: F.rms_norm(F.embedding(i, w), (64,), g),
        (drawn(20, 64), torch.tensor([[1, 3], [0, 19]]), drawn(64)),
    ),
    "a growing cache": (grown, (drawn(2, 9, 64), drawn(2, 1, 64), drawn(2, 1, 64))),
    "means": (lambda x: x.float().mean(-1, keepdim=True) * x, (drawn(7, 100),)),
    "argmax of a product": (
        lambda a, b: (a @ b).argmax(-1),
        (drawn(7, 100), drawn(100, 50)),
    ),
    "router": (
        lambda x: tuple(torch.softmax(x, -1).topk(2, -1)),
        (drawn(7, 8),),
    ),
    "copied onto an input": (taken_over, (drawn(8, 16), drawn(8, 16))),
    "added to an input": (lambda x: x.add_(1).mul(2), (drawn(8, 16),)),
}
ONTO_HOST = {
    "rows of a cache": (cached, (drawn(2, 16, 64), torch.tensor([3, 4]), drawn(2, 2, 64))),
    "one row of a cache": (cached, (drawn(2, 16, 64), torch.tensor([3]), drawn(2, 1, 64))),
    "a row written twice": (
        cached,
        (drawn(2, 9, 64), torch.tensor([3, 3]), drawn(2, 1, 64).expand(2, 2, 64)),
    ),
    "rows of a cache put": (put, (drawn(2, 16, 64), torch.tensor([3, -1]), drawn(2, 2, 64))),
}
"""Functions that eager mode does with the CPU."""


def on_card(arguments):
    return [a.clone().to("spyre") for a in arguments]


def outcome(function, arguments):
    """The results, and the arguments afterwards, on the host."""
    found = tensors(function(*arguments))
    return [t.cpu() for t in (*found, *arguments)]


@pytest.fixture
def eager_launches(monkeypatch):
    found = []
    launch = eager_run._launch

    def counted(prepared, *rest):
        found.append(prepared)
        return launch(prepared, *rest)

    monkeypatch.setattr(eager_run, "_launch", counted)
    return found


@pytest.mark.parametrize("name", [*CASES, *ONTO_HOST])
def test_one_bundle_has_the_bits_of_eager_mode(tmp_path, name, eager_launches):
    function, arguments = (CASES | ONTO_HOST)[name]
    expected = outcome(function, on_card(arguments))
    torch._dynamo.reset()
    function = torch.compile(function, fullgraph=True, dynamic=False)
    with collected() as kernels:
        function(*on_card(arguments))
    given = on_card(arguments)
    eager_launches.clear()
    torch.spyre.reset_fallbacks()
    result = function(*given)
    assert not torch.spyre.fallbacks()
    assert not eager_launches
    found = [t.cpu() for t in (*tensors(result), *given)]
    assert len(kernels) == 1
    for mine, eager in zip(found, expected, strict=True):
        assert mine.dtype == eager.dtype
        assert torch.equal(mine, eager)
    directory = write_bundle(kernels[0].bundle, tmp_path / "kernel")
    assert load_bundle(directory).check() == ()


def test_results_nobody_reads_are_not_made():
    _, kernels = compiled(lambda x: (x * 2).topk(3).values, drawn(7, 100).to("spyre"))
    assert [spec.op for spec in kernels[0].specs if spec.op.startswith("topk")] == ["topkvalue"]
    assert all(dtype != "float32" for _, dtype in kernels[0].constants)


def test_an_index_out_of_range_is_a_fault():
    found = run(
        """
        import torch
        w, i = torch.ones(20, 64).half().to("spyre"), torch.tensor([20]).to("spyre")
        try:
            torch.compile(lambda w, i: w[i] * 2, fullgraph=True)(w, i).cpu()
        except Exception as error:
            print(error)
        """
    )
    assert "SPY412" in found


def test_what_no_program_does_runs_eagerly():
    """A join of bytes, which only DMA moves."""
    x = torch.arange(12, dtype=torch.int8).reshape(3, 4).to("spyre")
    result, kernels = compiled(lambda x: torch.cat([x, x]), x)
    assert torch.equal(result.cpu(), torch.cat([x.cpu(), x.cpu()]))
    assert not kernels


class Pair(torch.nn.Module):
    """Convolutions forward and backward, one weight of which another operation reads too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 20, 1)

    def forward(self, x):
        return self.second(self.first(x)) + self.second.weight.sum()


def test_weights_of_convolutions_are_taken_as_their_modules_have_them(monkeypatch):
    module, x = Pair().half().to("spyre"), drawn(2, 3, 9, 9).to("spyre")
    eager = module(x)
    eager.float().sum().backward()
    gradients = [p.grad.cpu() for p in module.parameters()]
    module.zero_grad()
    monkeypatch.setattr(kernels, "allocate", None)  # nothing is copied to another layout
    result, forward = compiled(module, x)
    with collected() as backward:
        result.float().sum().backward()
    assert forward
    assert backward
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient, atol=0.05, rtol=0.02)


class Tied(torch.nn.Module):
    """Linear maps, the weight of one of which another operation reads too, and one that is written
    to.
    """

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(70, 130), torch.nn.Linear(130, 64)
        self.third = torch.nn.Linear(64, 64, bias=False)

    def forward(self, x):
        y = self.third(self.second(F.gelu(self.first(x))))
        self.third.weight.mul_(2)
        return y + self.second.weight.sum()


def names_of(kernel):
    return [operation.name for operation in operations_in(kernel.kernel)]


def test_weights_of_linear_maps_are_taken_as_their_modules_have_them():
    module, x = Tied().half().eval().requires_grad_(False).to("spyre"), drawn(5, 70).to("spyre")
    before = module.third.weight.cpu()
    eager = module(x)
    module.third.weight.copy_(before)
    result, (kernel,) = compiled(module, x)
    assert torch.equal(result.cpu(), eager.cpu())
    assert torch.equal(module.third.weight.cpu(), before * 2)
    assert names_of(kernel).count("batchmatmul") == 3


def test_linear_maps_in_inference_turn_no_weights(monkeypatch):
    module = torch.nn.Sequential(torch.nn.Linear(70, 130), torch.nn.Linear(130, 64))
    module, x = module.half().eval().to("spyre"), drawn(5, 70).to("spyre")
    monkeypatch.setattr(kernels, "allocate", None)  # nothing is copied to another layout
    with torch.no_grad():
        eager = module(x)
        result, (kernel,) = compiled(module, x)
    assert torch.equal(result.cpu(), eager.cpu())
    assert not [name for name in names_of(kernel) if name.startswith("ReStickify")]


def test_weights_of_convolutions_that_lie_otherwise_are_copied():
    x, w = drawn(2, 3, 9, 9).to("spyre"), drawn(16, 3, 3, 3).to("spyre")
    in_module = torch.nn.Conv2d(3, 16, 3, bias=False).half().to("spyre")
    with torch.no_grad():
        in_module.weight.copy_(w)
    eager = F.conv2d(x, w)
    result, (kernel,) = compiled(lambda x, w: F.conv2d(x, w), x, w)
    assert torch.equal(result.cpu(), eager.cpu())
    kernel.run(x, in_module.weight.data, result)
    assert torch.equal(result.cpu(), eager.cpu())


def test_a_number_is_the_bias_of_all_rows():
    arguments = [t.half().to("spyre") for t in (torch.randn(()), torch.randn(5, 70), drawn(70))]
    result, (kernel,) = compiled(torch.addmv, *arguments)
    assert kernel
    assert torch.equal(result.cpu(), torch.addmv(*arguments).cpu())
