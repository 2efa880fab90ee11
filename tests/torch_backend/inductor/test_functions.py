"""Functions of every family of operations, compiled: the values of the CPU, nothing falls back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.torch_backend.inductor.compiled_code import collected
from tests.torch_backend.inductor.emitted_kernels import KernelChecks

torch.manual_seed(0)
R = torch.randn
A, B, C = R(7, 100), R(7, 100), R(7, 100)
X, Y, ZERO_ONE = R(3, 7, 70), R(3, 7, 70), torch.rand(7, 100)
QUERY, KEY, VALUE = R(1, 4, 8, 64), R(1, 4, 8, 64), R(1, 4, 8, 64)
ROWS = torch.tensor([[0, 6, 3, 3, 1]] * 7)
INTS, MASK = torch.arange(490).reshape(7, 70) % 8, R(7, 70) > 0
EMPTY = torch.empty(0, 5)
PRODUCT = 0.05
"""Products are made in DL16."""


def attention(x, w):
    q, k, v = (t.view(2, 5, 3, 16).transpose(1, 2) for t in (x @ w).chunk(3, -1))
    return ((q @ k.mT * 0.25).softmax(-1) @ v).transpose(1, 2).reshape(2, 5, 48)


def chain(a, b):
    for _ in range(30):
        a = (a + b) * 0.5
    return a


def even_rope(q, c, s):
    even, odd = q[..., ::2], q[..., 1::2]
    return torch.stack([even * c - odd * s, odd * c + even * s], -1).flatten(-2)


def in_place(a, b):
    a.add_(1)
    a.mul_(b)
    return b + 1


def in_place_views(a, b):
    a[:, 3:10].mul_(2)
    a.t().add_(1)
    return b * a


def in_place_slice(a):
    a[:, 3:10].mul_(2)
    return a + 1


def in_place_row(a, b):
    a[2].copy_(b[0])
    return a.sum(-1)


def in_place_columns(a, b):
    a[:, 3:10] = b[:, :7]
    return a * 2


def made(a):
    options = {"device": a.device, "dtype": a.dtype}
    whole = torch.zeros_like(a) + a, torch.ones(100, **options) * a
    return (*whole, torch.arange(100, **options) + a, torch.full((7, 1), 2.0, **options) * a)


def constants(a):
    """Tensors that stand in the code."""
    order = torch.tensor([2, 0, 1], device=a.device)
    factors = torch.tensor([2.0, 0.0, 1.0], device=a.device)
    return a[order, :3] * factors + torch.tensor(3.0, device=a.device)


def reductions(x, dims, keep):
    return x.sum(dims, keep), x.mean(dims, keep), x.amax(dims, keep), x.amin(dims, keep)


def product(a, b, left, right):
    return (a.mT if left else a) @ (b.mT if right else b)


FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "each for itself": (lambda a: (torch.any(a, dim=[]), torch.cumsum(a.sum() * 0, 0)), A),
    "arithmetic": (lambda a, b: (a + b, a - b, a * b, a / (b.abs() + 1)), A, B),
    "scalars": (lambda a: (1 - a, 2 / (a.abs() + 1), a * 3 + 0.5), A),
    "alpha": (lambda a, b: (torch.add(a, b, alpha=2), torch.rsub(a, b)), A, B),
    "addcmul": (lambda a, b, c: (a.addcmul(b, c, value=0.5), a.addcdiv(b, c.abs() + 1)), A, B, C),
    "lerp": (lambda a, b: (torch.lerp(a, b, 0.3), torch.lerp(a, b, b)), A, B),
    "broadcasting": (lambda a, b, c: a + b * c, R(3, 1, 64), R(5, 1), R(64)),
    "broadcasting ranks": (lambda a, b: a * b, R(2, 3, 4, 65), R(3, 1, 65)),
    "rank 0": (lambda s, t: (s + t, s * 2, s.exp()), torch.tensor(1.5), torch.tensor(0.5)),
    "tensor of rank 0": (lambda a, s: a * s + s, A, torch.tensor(2.5)),
    "unary": (lambda a: (a.abs(), a.neg(), a.relu(), a.sigmoid(), a.tanh(), a.square()), A),
    "positive unary": (lambda a: (a.log(), a.rsqrt(), a.sqrt(), a.reciprocal()), A.abs() + 0.1),
    "rounding": (lambda a: (a.floor(), a.sign()), A * 3),
    "activations": (lambda a: (F.gelu(a), F.silu(a), F.elu(a), F.mish(a), F.softplus(a)), A),
    "other activations": (lambda a: (F.celu(a), F.selu(a), F.hardswish(a), F.relu6(a)), A),
    "prelu": (F.prelu, R(3, 5, 64), R(5)),
    "comparisons": (lambda a, b: (a > b, a < b, a == b, a != b, a >= 0, a <= 0.5), A, B),
    "logic": (lambda a, b: ((a > 0) & (b > 0), (a > 0) | (b > 0), ~(a > 0)), A, B),
    "extremes": (lambda a, b: (a.minimum(b), a.maximum(b), a.clamp(-1, 1), a.clamp(min=0)), A, B),
    "where": (lambda a, b: (a.where(a > b, b), a.masked_fill(b > 0, -1)), A, B),
    "where broadcast": (lambda m, a: torch.where(m, a, -1e4), R(7, 1) > 0, A),
    "no numbers": (lambda a: (a.isnan(), a.isinf()), torch.tensor([1, torch.nan, torch.inf])),
    "powers": (lambda a: (a**2, a**3, a**-1, a**0.5), A.abs() + 0.1),
    "any, all": (lambda a: ((a > 0).any(), (a > 0).all(-1), (a > 0).sum(1)), A),
    "all extremes": (lambda a: (a.sum(), a.mean(), a.max(), a.min()), X),
    "places": (lambda a: (a.max(-1), a.min(0), a.argmax(1)), A),
    "variance": (lambda a: (a.var(-1), a.std(0), a.norm(dim=-1), a.var((0, 1))), A),
    "logsumexp": (lambda a: (a.logsumexp(-1), a.logsumexp(0, True)), A),
    "softmax": (lambda x: (x.softmax(0), x.softmax(1), x.softmax(2), x.log_softmax(1)), X),
    "layer_norm": (lambda x, w: (F.layer_norm(x, (70,), w, w), F.layer_norm(x, (7, 70))), X, R(70)),
    "rms_norm": (lambda x: F.rms_norm(x, (70,)), X),
    "normalize": (lambda a: F.normalize(a, dim=-1), A),
    "matmul broadcast": (lambda a, b, c: (a @ b, a @ c), R(2, 3, 8, 70), R(3, 70, 9), R(70, 5)),
    "matmul both broadcast": (torch.matmul, R(2, 1, 8, 70), R(1, 3, 70, 9)),
    "matmul ranks": (torch.matmul, R(8, 70), R(3, 70, 9)),
    "vectors": (lambda a, v, w: (a @ v, v @ v, w @ a), R(33, 70), R(70), R(33)),
    "outer": (torch.outer, R(33), R(70)),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), R(9), R(33, 70), R(70, 9)),
    "linear": (lambda x, w, b: (F.linear(x, w, b), F.linear(x, w)), X, R(33, 70), R(33)),
    "einsum": (lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b), R(2, 8, 3, 16), R(2, 9, 3, 16)),
    "sdpa": (F.scaled_dot_product_attention, QUERY, KEY, VALUE),
    "sdpa causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *(QUERY, KEY, VALUE),
    ),
    "sdpa masked": (F.scaled_dot_product_attention, QUERY, KEY, VALUE, R(8, 8) > -1),
    "sdpa groups": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
        *(QUERY, KEY, VALUE),
    ),
    "sdpa odd": (F.scaled_dot_product_attention, R(2, 3, 7, 20), R(2, 3, 11, 20), R(2, 3, 11, 20)),
    "attention": (attention, R(2, 5, 48), R(48, 144) * 0.1),
    "views": (lambda a: ((a.t() * 2)[2:5, ::2].reshape(-1) + 1, a.view(-1) * 2), A),
    "views across rows": (lambda a: (a.view(10, 70) + 1, (a * 2).view(10, 70) - 1), A),
    "slices": (lambda a: (a[:, 3:10] * 2, a[1:3] + 1, a[:, ::3] * 2, a[..., -1] + 1, a[2] * 3), A),
    "permutations": (lambda x: (x.permute(2, 0, 1) + 1, x.mT.contiguous(), x.transpose(0, 2)), X),
    "expansions": (lambda a: (a.expand(4, 7, 100) * 2, a[:, None].expand(7, 3, 100) + 1), A),
    "flattened": (lambda x: (x.flatten() * 2, x.flatten(1) + 1, x.unflatten(-1, (7, 10)) * 2), X),
    "repeated": (lambda a: (a.repeat(2, 3) + 1, a.tile(2)), A),
    "joined": (lambda a, b: (torch.cat([a, b * 2], 0), torch.cat([a + 1, b], 1)), A, B),
    "stacked": (lambda a, b: torch.stack([a, b + 1], 1), A, B),
    "split": (lambda a: [t * 2 for t in a.split(30, 1)] + [t + 1 for t in a.chunk(3, 0)], A),
    "gathered": (lambda a, i: (a.gather(1, i) * 2, a[i[0]] + 1, a.index_select(0, i[0])), A, ROWS),
    "embedding": (lambda i, w: F.embedding(i, w) * 2, ROWS, R(20, 70)),
    "sorted": (lambda a: (a.sort(-1), a.topk(3)), A),
    "running sums": (lambda a: (a.cumsum(0) * 2, a.cumsum(-1)), A * 0.1),
    "triangles": (lambda a: (a.tril() + 1, a.triu(1) * 2), R(8, 8)),
    "padded": (lambda a: (F.pad(a, (1, 2)) * 2, F.pad(a, (0, 3, 2, 0), value=1.0)), A),
    "turned": (lambda a: (a.flip(0) * 2, a.roll(3, 1) + 1), A),
    "dtypes": (lambda a: ((a * 3).int(), (a * 3).long() + 1, (a > 0).float(), a.bool()), A),
    "half": (lambda a, b: (a.half() * b.half(), a.half().float() + b), A, B),
    "int64": (lambda i: (i + i, i * 2, i == 3, i.sum(), -i, i.float() * 0.5, i.amax(0)), INTS),
    "int32": (lambda i: (i + 1, i * i), INTS.int()),
    "bool": (lambda m: (m & ~m, m | m, m.sum(), m.any(0), m.float(), m.long() * 2), MASK),
    "in place": (in_place, A, B),
    "in place, views": (in_place_views, A, B),
    "in place, a slice": (in_place_slice, A),
    "in place, a row": (in_place_row, A, B),
    "in place, columns": (in_place_columns, A, B),
    "outputs are views": (lambda a: ((a * 2).view(10, 70), (a + 1).t(), (a * 3)[1:3]), A),
    "outputs are inputs": (lambda a: (a, a.view(-1), a.t(), a[2:], a + 1), A),
    "constants": (constants, A),
    "made on the card": (made, A),
    "eye": (lambda a: torch.eye(7, device=a.device) + a[:, :7], A),
    "empty": (lambda e: (e + 1, e.sum(), e.sum(0), torch.cat([e, e])), EMPTY),
    "empty products": (lambda e, w: (e @ w, e.t() * 2), EMPTY, R(5, 6)),
    "size one": (lambda a, b: (a + b, a.sum(-1), a @ b.mT, a.softmax(-1)), R(3, 1, 1), R(3, 1, 1)),
    "rank 6": (lambda a: (a + 1, a.sum((1, 3))), R(2, 3, 2, 3, 2, 5)),
    "used often": (lambda a: (lambda c: (c * 2).sum(0) + c.t().sum(-1) + c.mean())(a @ a), R(8, 8)),
    "long": (chain, A, B),
    "rope of pairs": (even_rope, QUERY, R(8, 32), R(8, 32)),
    "transposed input": (lambda a: (a * 2, a.sum(-1)), A.t()),
}
for dims in (0, 1, 2, (0, 1), (1, 2), (0, 2), (0, 1, 2)):
    for keep in (False, True):
        FUNCTIONS[f"reductions {dims} {keep}"] = (reductions, X, dims, keep)
for left in (False, True):
    for right in (False, True):
        a, b = R(3, 33, 70), R(3, 70, 45)
        given = a.mT.contiguous() if left else a, b.mT.contiguous() if right else b
        FUNCTIONS[f"bmm {left} {right}"] = (product, *given, left, right)
        FUNCTIONS[f"mm {left} {right}"] = (product, given[0][0], given[1][0], left, right)
LOOSE = ("mm", "matmul", "vectors", "outer", "linear", "einsum", "sdpa", "attention", "used often")
FALL_BACK = {
    "random": (lambda a: F.dropout(a, 0.0, True) + torch.rand_like(a) * 0, A),
    "floor_divide": (lambda a, b: (a // 2, torch.floor_divide(a, b)), A, ZERO_ONE + 1),
    "trigonometry": (lambda a: (a.sin() + 1, (a * 2).cos()), A),
    "linspace": (lambda a, b: torch.linspace(a, b, 5, device=a.device), R(()), R(())),
    "logspace": (lambda a, b: torch.logspace(a, b, 5, device=a.device), R(()), R(())),
    "put": (lambda a, i, v: a.put(i, v, True), R(3), torch.tensor(1), R(1)),
    "glu": (lambda a: F.glu(a, -1) * a.trunc()[:, :64], R(7, 128)),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w, w), R(3, 4, 6), R(4)),
    "convolution": (lambda x, w: F.conv2d(x, w).relu(), R(1, 3, 8, 8), R(4, 3, 3, 3)),
}
"""Functions with operations that run on the CPU in eager mode too."""


def tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    else:
        for part in found:
            yield from tensors(part)


def agrees(function: Callable[..., Any], given: tuple[Any, ...], tolerance: float) -> list[Any]:
    """Check results and changed inputs against the CPU; return the kernels."""
    host = [g.clone() if isinstance(g, torch.Tensor) else g for g in given]
    card = [g.to("spyre") if isinstance(g, torch.Tensor) else g for g in given]
    wanted = list(tensors(function(*host)))
    torch._dynamo.reset()
    torch.spyre.reset_fallbacks()
    with collected() as kernels:
        found = list(tensors(torch.compile(function, fullgraph=True, dynamic=False)(*card)))
    kept = [(c, h) for c, h in zip(card, host, strict=True) if isinstance(h, torch.Tensor)]
    for one, other in [*zip(found, wanted, strict=True), *kept]:
        assert one.device.type == "spyre"
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        torch.testing.assert_close(one.cpu(), other, atol=tolerance, rtol=tolerance, equal_nan=True)
    return kernels


@pytest.fixture(scope="module")
def checks():
    return KernelChecks()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name, checks, tmp_path):
    function, *given = FUNCTIONS[name]
    tolerance = PRODUCT if any(word in name for word in LOOSE) or "mm" in name else 2e-3
    kernels = agrees(function, tuple(given), tolerance)
    assert torch.spyre.fallbacks() == {}
    for number, kernel in enumerate(kernels):
        assert checks.findings(kernel, tmp_path / str(number)) == []


@pytest.mark.parametrize("name", FALL_BACK)
def test_a_function_that_falls_back_in_part(name):
    function, *given = FALL_BACK[name]
    agrees(function, tuple(given), PRODUCT)


@pytest.mark.parametrize(
    "function",
    [lambda a: (a.double() + 1).float(), lambda a: torch.softmax(a, 1, dtype=torch.float64)],
)
def test_float64_is_refused_as_in_eager_mode(function):
    """It is no number, which the host could compute with."""
    card = A.to("spyre")
    for call in (function, torch.compile(function)):
        with pytest.raises(Exception, match="Spyre backend does not support dtype float64"):
            call(card)
