"""Random training steps by seed: layers, a loss, hooks; forward and backward against the CPU.

Layers are drawn, tried on the CPU and kept if they run there, like statements in :mod:`.generate`.
The step runs on the CPU in float64 as the reference, on the CPU in the step's dtype, whose error
scales the bound, and on the card. The results of all layers, the loss, the gradients of the input
and of all parameters, and the buffers are compared. Some losses have only ignored targets, weights
of zero or an empty batch: where the CPU has NaN, the card must have NaN, and nowhere else.

A gradient jumps where an operation is not smooth: at the kink of a ReLU, between two maxima, at the
sign of an L1 loss. A step is unstable, which is no defect, if the float64 reference differs as much
once the results of its layers are changed by less than the allowed difference, or a card does that
rounds ties to even: where terms cancel, as in the norm of two elements, roundings are left.
"""

from __future__ import annotations

import copy
import io
import math
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch import nn
from torch.nn import functional as F

from qa.random_programs.comparison import Failure, raised, worst
from qa.random_programs.programs import FLOAT, HALF

Tensor = torch.Tensor
MOST_ELEMENTS = 20_000
WIDTHS = (1, 2, 3, 5, 8, 16, 31, 32, 33, 63, 64, 65, 96)
SLACK = {FLOAT: 2.0**-13, HALF: 2.0**-5}
"""Allowed difference relative to the largest value, in addition to `TIMES` the CPU's error."""
TIMES = 16
NOISE = {dtype: slack / 16 for dtype, slack in SLACK.items()}
"""Change of the results of layers and of their gradients, relative to the largest."""
SPREADS = {FLOAT: 2, HALF: 4}
"""Allowed multiple of the changes that follow on the CPU: the card's 16-bit floats have one bit of
precision less than float16."""
ROUNDINGS = ("dl16", "dl16:alu=even")
IGNORED = -100


class Residual(nn.Module):
    """``x`` plus ``body(x)``."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + self.body(x)


class First(nn.Module):
    """The first result of a module with several, as the sequence of an LSTM."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return the first result."""
        result: Tensor = self.body(x)[0]
        return result


class Attention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.body = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended sequence."""
        result: Tensor = self.body(x, x, x, need_weights=False)[0]
        return result


class Checkpointed(nn.Module):
    """A module whose forward is computed again in the backward."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return the body's result."""
        from torch.utils.checkpoint import checkpoint

        result: Tensor = checkpoint(self.body, x, use_reentrant=False)
        return result


SCOPE = {
    **{"torch": torch, "nn": nn, "F": F},
    **{c.__name__: c for c in (Residual, First, Attention, Checkpointed)},
}


@dataclass(frozen=True)
class Step:
    """One training step. ``layers``: texts. ``loss``: text over ``y``; the targets in it are built
    from the sizes of ``y``. ``hooks``: numbers of layers whose gradient a hook halves.
    """

    seed: int
    sizes: tuple[int, ...]
    dtype: torch.dtype
    layers: tuple[str, ...]
    loss: str
    hooks: tuple[int, ...] = ()

    def model(self) -> nn.Sequential:
        """Return the layers in float32 on the CPU, with the parameters of the seed."""
        torch.manual_seed(self.seed)
        return nn.Sequential(*(eval(text, dict(SCOPE)) for text in self.layers))

    def input(self) -> Tensor:
        """Return the input in float32: normal numbers with an exact form in 16-bit floats."""
        generator = torch.Generator().manual_seed(self.seed)
        return (torch.randn(self.sizes, generator=generator) * 64).round().clamp(-255, 255) / 64

    def __str__(self) -> str:
        rows = [f"# seed {self.seed}: x = {str(self.dtype)[6:]}{list(self.sizes)}"]
        rows += ["model = nn.Sequential(", *(f"    {text}," for text in self.layers), ")"]
        if self.hooks:
            rows.append(f"# hooks halve the gradients of the results of layers {list(self.hooks)}")
        return "\n".join([*rows, "y = model(x)", f"({self.loss}).backward()", ""])


Values = dict[str, Tensor | None]


def run(step: Step, device: str, dtype: torch.dtype, noise: int | None = None) -> Values:
    """Run a step; return its results, gradients and buffers by name.

    ``noise``: seed of random changes of the input, of the results of layers and of their gradients.
    """
    # Numbers are rounded to the step's dtype before float64 is taken, which is the reference.
    model = copy.deepcopy(step.model()).to(step.dtype).to(dtype).to(device)
    x = step.input().to(step.dtype).to(dtype).to(device).requires_grad_()
    values: Values = {}
    changes = None if noise is None else torch.Generator().manual_seed(noise)
    y = _changed(x, step.dtype, changes)
    for number, layer in enumerate(model):
        y = _changed(layer(y), step.dtype, changes)
        if number in step.hooks and y.requires_grad:
            y.register_hook(lambda gradient: gradient * 0.5)
    values["result"] = y
    torch.manual_seed(step.seed)
    loss = eval(step.loss, {**SCOPE, "y": y, "like": _like(device, dtype, step.dtype)})
    values["loss"] = loss
    loss.backward()
    values["gradient of x"] = x.grad
    values |= {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
    values |= dict(model.named_buffers())
    return {k: None if v is None else v.detach().cpu() for k, v in values.items()}


def _changed(y: Tensor, dtype: torch.dtype, changes: torch.Generator | None) -> Tensor:
    if changes is None:
        return y
    signs, others = (torch.rand(y.shape, generator=changes, dtype=y.dtype) * 2 - 1 for _ in "12")
    # Zeros are changed too: rounding may leave something of terms that cancel.
    y = y + signs * (NOISE[dtype] * max(_size(y), 2.0**-6))
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient + others * (NOISE[dtype] * _size(gradient)))
    return y


def _like(device: str, dtype: torch.dtype, kept: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return a function that moves targets made on the CPU to a device, floats in ``dtype``, with
    values that ``kept`` has, and of float16 those that DLFloat16 has too: copies to the card round
    ties away from zero, which adds up where the terms of a loss cancel.
    """

    def moved(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t.to(device)
        t = t.to(kept)
        if kept is HALF:
            t = (t.view(torch.int16) & ~1).view(HALF)
        return t.to(dtype).to(device)

    return moved


# --- generation -------------------------------------------------------------------------------


def random_step(seed: int) -> Step:
    """Return the step of a seed; it runs on the CPU."""
    draw = random.Random(seed)
    while True:
        rank = draw.choice((2, 2, 3, 3, 4))
        batch = 0 if draw.random() < 0.05 else draw.choice((1, 2, 3, 7, 8))
        inner = WIDTHS[1:8] if rank > 2 else WIDTHS
        sizes = (batch, *(draw.choice(inner) for _ in range(rank - 1)))
        dtype = draw.choice((FLOAT, FLOAT, HALF))
        step = Step(seed, sizes, dtype, (), "y.sum()")
        for _ in range(draw.randint(1, 5)):
            step = _with_layer(draw, step)
        hooks = tuple(k for k in range(len(step.layers)) if draw.random() < 0.1)
        step = replace(step, hooks=hooks)
        for _ in range(20):
            tried = replace(step, loss=_loss(draw, _end(step)))
            if step.layers and _runs(tried):
                return tried


def _runs(step: Step) -> bool:
    """True unless the step raises, or its result is too large, not finite, or nothing but zeros, as
    of a norm over one element: gradients are then made of roundings only.
    """
    try:
        values = run(step, "cpu", step.dtype)
    except Exception:
        return False
    y = values["result"]
    assert y is not None
    is_small = y.numel() <= MOST_ELEMENTS and bool(torch.isfinite(y).all())
    return is_small and (y.numel() == 0 or _size(y) > 2.0**-10)


def _end(step: Step) -> Tensor:
    """Return the result of a step's layers on the CPU."""
    with torch.no_grad():
        result: Tensor = step.model()(step.input())
    return result


def _with_layer(draw: random.Random, step: Step) -> Step:
    for _ in range(20):
        layer = _wrapped(draw, _layer(draw, _end(step).shape))
        tried = replace(step, layers=(*step.layers, layer))
        if _runs(tried):
            return tried
    return step


def _wrapped(draw: random.Random, layer: str) -> str:
    chance = draw.random()
    if chance < 0.08:
        return f"Residual({layer})"
    return f"Checkpointed({layer})" if chance < 0.16 else layer


def _layer(draw: random.Random, sizes: torch.Size) -> str:
    """Return a layer's text for an input of ``sizes``; it may not fit."""
    last, channels = sizes[-1], sizes[1] if len(sizes) > 1 else 1
    width, pick = draw.choice(WIDTHS), draw.choice
    bias = pick((True, True, False))
    n = max(1, len(sizes) - 2)
    groups = pick([g for g in (1, 2, 3, channels) if g and channels % g == 0])
    kernel = pick((1, 2, 3))
    plain = (
        *("nn.ReLU()", "nn.GELU()", "nn.SiLU()", "nn.Tanh()", "nn.Sigmoid()", "nn.ELU()"),
        *("nn.LeakyReLU(0.1)", "nn.Softplus()", "nn.Hardswish()", "nn.Mish()", "nn.PReLU()"),
        *("nn.SELU()", "nn.Hardtanh()", "nn.ReLU6()", "nn.LogSigmoid()", "nn.Softsign()"),
        *("nn.Softmax(-1)", "nn.LogSoftmax(1)", "nn.Flatten()", "nn.Identity()", "nn.CELU()"),
        "nn.GELU(approximate='tanh')",
    )
    return pick(
        (
            f"nn.Linear({last}, {width}, bias={bias})",
            f"nn.Linear({last}, {width}, bias={bias})",
            pick(plain),
            pick(plain),
            f"nn.LayerNorm({list(sizes[-pick((1, min(2, len(sizes) - 1))) :])})",
            f"nn.RMSNorm({last})",
            f"nn.BatchNorm{n}d({channels}, affine={bias})",
            f"nn.GroupNorm({groups}, {channels})",
            f"nn.InstanceNorm{n}d({channels}, affine={bias})",
            f"nn.Conv{n}d({channels}, {pick(WIDTHS[:8])}, {kernel}, stride={pick((1, 2))}, "
            f"padding={pick((0, 1))}, dilation={pick((1, 1, 2))}, bias={bias})",
            f"nn.Conv{n}d({channels}, {groups * pick((1, 2))}, {kernel}, groups={groups})",
            f"nn.ConvTranspose{n}d({channels}, {pick(WIDTHS[:6])}, {kernel}, "
            f"stride={pick((1, 2))})",
            f"nn.MaxPool{n}d({kernel}, stride={pick((1, 2))})",
            f"nn.AvgPool{n}d({kernel}, stride={pick((1, 2))})",
            f"nn.AdaptiveAvgPool{n}d({pick((1, 2))})",
            f"nn.Upsample(scale_factor=2, mode='{pick(('nearest', 'linear', 'bilinear'))}')",
            f"nn.ConstantPad{n}d({pick((1, 2))}, 0.5)",
            f"First(nn.LSTM({last}, {pick(WIDTHS[:8])}, batch_first=True))",
            f"First(nn.GRU({last}, {pick(WIDTHS[:8])}, batch_first=True, bias={bias}))",
            f"First(nn.RNN({last}, {pick(WIDTHS[:8])}, nonlinearity='{pick(('tanh', 'relu'))}'))",
            f"Attention({last}, {pick((1, 2, 4))})",
            f"nn.TransformerEncoderLayer({last}, {pick((1, 2))}, {width}, 0.0, batch_first=True)",
            f"nn.Unflatten(-1, (-1, {pick((2, 3, 8))}))",
            "nn.Dropout(0.0)",
            "nn.PixelShuffle(2)",
        )
    )


def _loss(draw: random.Random, y: Tensor) -> str:
    """Return a loss's text over ``y``."""
    reduction = draw.choice(("mean", "mean", "sum", "none"))
    shape, whole = list(y.shape), f"reduction='{reduction}').sum()"
    classes = shape[1] if len(shape) > 1 else 1
    rest = [shape[0], *shape[2:]]
    target = f"like(torch.randn({shape}))"
    if draw.random() < 0.3:
        indices = f"torch.full({rest}, {IGNORED})"
    else:
        ignored = f".where(torch.rand({rest}) < 0.7, torch.tensor({IGNORED}))"
        indices = f"torch.randint({max(classes, 1)}, {rest})" + draw.choice(("", ignored))
    weight = draw.choice(
        ("", "", f"weight=like(torch.rand({classes})), ", f"weight=like(torch.zeros({classes})), ")
    )
    smoothing = draw.choice(("", "label_smoothing=0.1, "))
    chance = f"like(torch.rand({shape}).round())"
    return draw.choice(
        (
            f"F.cross_entropy(y, like({indices}), {weight}{smoothing}{whole}",
            f"F.cross_entropy(y, like({indices}), {weight}{whole}",
            f"F.nll_loss(y.log_softmax(1), like({indices}), {weight}{whole}",
            f"F.cross_entropy(y, like(torch.rand({shape}).softmax(1)), {weight}{whole}",
            f"F.mse_loss(y, {target}, {whole}",
            f"F.l1_loss(y, {target}, {whole}",
            f"F.smooth_l1_loss(y, {target}, {whole}",
            f"F.huber_loss(y, {target}, delta=0.5, {whole}",
            f"F.binary_cross_entropy_with_logits(y, {chance}, {whole}",
            f"F.binary_cross_entropy(y.sigmoid(), {chance}, {whole}",
            f"F.kl_div(y.log_softmax(-1), {target}.softmax(-1), {whole}",
            f"F.poisson_nll_loss(y.clamp(-3, 3), {chance}, {whole}",
            f"F.soft_margin_loss(y, {chance} * 2 - 1, {whole}",
            f"F.hinge_embedding_loss(y, {chance} * 2 - 1, {whole}",
            f"F.gaussian_nll_loss(y, {target}, like(torch.rand({shape}) + 0.5), {whole}",
            f"F.cosine_similarity(y, {target}, -1).mean()",
            "(y * y).mean()",
            "y.logsumexp(-1).sum()",
            "y.norm()",
        )
    )


# --- comparison -------------------------------------------------------------------------------


def first_failure(step: Step) -> Failure | None:
    """Return the first value of a step that differs from the CPU's; None if all agree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact, host = run(step, "cpu", torch.float64), run(step, "cpu", step.dtype)
        try:
            card = run(step, "spyre", step.dtype)
        except Exception as error:
            return raised("training", error)
        differences = partial(_differences, step.dtype, exact, host, card)
        for name, text in differences({}):
            stays = any(differences(spread_of(step, exact))) and any(differences(rounding_of(step)))
            return Failure("training", "different" if stays else "unstable", f"{name}: {text}")
    return None


def spread_of(step: Step, exact: Values) -> dict[str, Tensor]:
    """Return how far small changes move each element on the CPU from its exact value, at most.

    In the step's dtype too: where terms cancel, its roundings are all that is left, and they cancel
    as well for the numbers of the step.
    """
    spread: dict[str, Tensor] = {}
    for seed, dtype in product(range(16), (torch.float64, step.dtype)):
        changed = run(step, "cpu", dtype, noise=seed)
        for name, value in exact.items():
            other = changed[name]
            if value is not None and other is not None and value.is_floating_point():
                moved = (other.double() - value).abs().nan_to_num()
                spread[name] = torch.maximum(spread.get(name, moved), moved)
    return spread


def rounding_of(step: Step) -> dict[str, Tensor]:
    """Return how far each element of a step of 16-bit floats moves if ties are rounded to even.

    A defect is the same with either rounding; the sum of many roundings is not.
    """
    if step.dtype is not HALF:
        return {}
    first, second = (_values_in(step, numerics) for numerics in ROUNDINGS)
    pairs = {name: (value, second[name]) for name, value in first.items()}
    return {
        name: (one.double() - other.double()).abs().nan_to_num()
        for name, (one, other) in pairs.items()
        if one is not None and other is not None and one.is_floating_point()
    }


def _values_in(step: Step, numerics: str) -> Values:
    """Run a step on a card in a number mode, in a new process."""
    code = f"import torch; from {__name__} import Step, write_values; write_values({step!r})"
    environment = {**os.environ, "SPYRE_NUMERICS": numerics}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True
    )
    values: Values = torch.load(io.BytesIO(done.stdout))
    return values


def write_values(step: Step) -> None:
    """Write the values of a step on the card to standard output."""
    warnings.simplefilter("ignore")
    torch.save(run(step, "spyre", step.dtype), sys.stdout.buffer)


def _differences(
    dtype: torch.dtype, exact: Values, host: Values, card: Values, spread: dict[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """Yield names and differences of wrong values. ``spread``: a multiple is allowed too."""
    largest = max((_size(v) for v in exact.values()), default=0.0)
    for name, expected in exact.items():
        ours, theirs = card[name], host[name]
        if expected is None or ours is None or theirs is None:
            if not (expected is None and ours is None):
                yield name, f"{_kind(ours)}, on the CPU {_kind(theirs)}"
            continue
        # Terms of a loss are about 1 also if their sum is small; gradients sum the largest terms.
        scale = 2.0**-4 if name == "loss" else 2.0**-10 * max(largest, 1.0)
        slack = SLACK[dtype] * max(_size(expected), scale)
        moved = SPREADS[dtype] * spread.get(name, torch.zeros(()))
        text = _difference(dtype, expected, theirs, ours, slack + moved)
        if text:
            yield name, text


def _kind(value: Tensor | None) -> str:
    return "none" if value is None else f"{value.dtype}{list(value.shape)}"


def _size(value: Tensor | None) -> float:
    """Return the largest finite magnitude."""
    if value is None or not value.numel():
        return 0.0
    return float(value.double().nan_to_num(0.0, 0.0, 0.0).abs().max())


def _difference(
    dtype: torch.dtype, exact: Tensor, host: Tensor, card: Tensor, slack: Tensor
) -> str:
    if card.dtype is not host.dtype or card.shape != host.shape:
        return f"{_kind(card)}, on the CPU {_kind(host)}"
    if not host.is_floating_point():
        wrong = card != host
        return worst(card, host, wrong) if bool(wrong.any()) else ""
    # torch's convolutions of some dtypes multiply the padding with gradients that are NaN
    lost = ~torch.isfinite(card) & torch.isfinite(host) & torch.isfinite(exact)
    if dtype is FLOAT:
        lost |= (torch.isnan(card) != torch.isnan(host)) & (torch.isnan(exact) == torch.isnan(host))
    if bool(lost.any()):
        return worst(card, host, lost)
    finite = torch.isfinite(host) & torch.isfinite(exact)
    error = (host.double() - exact).abs().where(finite, torch.zeros(()))
    largest = float(error.max()) if error.numel() else 0.0
    allowed = TIMES * largest + slack
    wrong = finite & ((card.double() - exact).abs() > allowed)
    return worst(card, exact, wrong) if bool(wrong.any()) else ""


def shrunk(step: Step, failure: Failure) -> tuple[Step, Failure]:
    """Drop layers and hooks, the last first, as long as a failure of the same kind stays."""
    smaller = True
    while smaller:
        smaller = False
        for tried in _smaller(step):
            if not _runs(tried):
                continue
            remaining = first_failure(tried)
            if remaining is not None and remaining.signature == failure.signature:
                step, failure, smaller = tried, remaining, True
                break
    return step, failure


def _smaller(step: Step) -> Iterator[Step]:
    if step.hooks:
        yield replace(step, hooks=())
    for k in reversed(range(len(step.layers))):
        if len(step.layers) > 1:
            yield replace(step, layers=(*step.layers[:k], *step.layers[k + 1 :]))
    half = tuple(max(1, math.ceil(n / 2)) for n in step.sizes)
    if half != step.sizes and 0 not in step.sizes:
        yield replace(step, sizes=half)
