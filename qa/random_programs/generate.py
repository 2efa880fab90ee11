"""Random programs by seed: statements are drawn, tried on the CPU, and kept if they run there.

No shape is inferred: a statement is dropped and another drawn if torch refuses it, or its result is
too large a tensor or has values beyond the range of a 16-bit format.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from qa.random_programs.programs import (
    BOOL,
    FLOAT,
    HALF,
    INT,
    Input,
    Program,
    Statement,
    execute,
    input_tensors,
)

EXTENTS = (1, 1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 63, 64, 65, 66, 96, 100, 128, 130)
MAX_ELEMENTS = 40_000
MAX_MAGNITUDE = 2.0**12
MIN_MAGNITUDE = 2.0**-12
"""Bounds of values; a product of two such values is in the range of every format."""

Tensors = dict[str, torch.Tensor]
Proposal = tuple[str, str]
"""Text and kind of an expression."""


class Draw:
    """Random choices among the tensors made so far."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.scope: Tensors = {}
        self.reads: list[str] = []

    def tensor(self, accept: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """Draw the name of a tensor; later ones are likelier."""
        names = [name for name, value in self.scope.items() if accept(value)]
        if not names:
            raise LookupError
        weights = [1 + index for index in range(len(names))]
        name = self.random.choices(names, weights)[0]
        self.reads.append(name)
        return name

    def floating(self, dims: int = 0) -> str:
        """Draw the name of a float tensor of at least ``dims`` dims."""
        return self.tensor(lambda t: t.is_floating_point() and t.dim() >= dims)

    def of(self, *dtypes: torch.dtype) -> str:
        """Draw the name of a tensor of one of the dtypes."""
        return self.tensor(lambda t: t.dtype in dtypes)

    def dim(self, name: str) -> int:
        """Draw a dim of a tensor, counted from either end."""
        rank = self.scope[name].dim()
        if not rank:
            raise LookupError
        return self.random.randrange(-rank, rank)

    def dims(self, name: str) -> list[int]:
        """Draw one or more dims of a tensor."""
        rank = self.scope[name].dim()
        if not rank:
            raise LookupError
        return sorted(self.random.sample(range(rank), self.random.randint(1, rank)))

    def from_the_end(self, name: str, dim: int) -> str:
        """Draw indices along a dim, some of them negative."""
        extent = self.scope[name].shape[dim]
        found = [self.random.randrange(-extent, extent) for _ in range(self.random.randint(1, 4))]
        return f"torch.tensor({found}, device={name}.device)"

    def number(self) -> str:
        """Draw a number that is exact in all formats."""
        return repr(self.random.choice([0.5, 2.0, -1.5, 3.0, 0.25, 1.0, -2.0]))

    def pick(self, *choices: str) -> str:
        """Draw one of the words."""
        return self.random.choice(choices)


def _unary(d: Draw) -> Proposal:
    x = d.floating()
    plain = d.pick(
        "torch.neg", "torch.abs", "torch.relu", "torch.floor", "torch.ceil", "torch.sign"
    )
    near = d.pick(
        "torch.sigmoid", "torch.tanh", "F.silu", "F.gelu", "torch.square", "torch.sin", "torch.cos",
        "torch.erf", "F.softplus", "torch.exp", "torch.round", "F.leaky_relu", "F.elu",
    )  # fmt: skip
    guarded = d.pick("torch.sqrt", "torch.rsqrt", "torch.reciprocal", "torch.log", "torch.log1p")
    text = d.pick(f"{plain}({x})", f"{near}({x})", f"{guarded}({x}.abs() + 0.5)")
    kind = "exact" if text.startswith(plain) else "near"
    return text, "log" if text.startswith("torch.log(") else kind


def _binary(d: Draw) -> Proposal:
    x, y = d.floating(), d.floating()
    form = d.pick("add", "sub", "mul", "maximum", "minimum", "number", "div", "reversed", "pow")
    match form:
        case "number":
            return f"{x} {d.pick('+', '*', '-', '/')} {d.number()}", "near"
        case "reversed":
            return f"{d.number()} - {x}", "near"
        case "div":
            return f"{x} / ({y}.abs() + 1.0)", "near"
        case "pow":
            return f"{x} ** 2", "near"
        case _:
            return f"torch.{form}({x}, {y})", "near"


def _integer(d: Draw) -> Proposal:
    x, y = d.of(INT), d.of(INT)
    form = d.pick("binary", "number", "unary", "compare", "clamp", "great", "sum", "divide")
    match form:
        case "binary":
            return f"torch.{d.pick('add', 'sub', 'mul', 'maximum', 'minimum')}({x}, {y})", "exact"
        case "number":
            return f"{x} {d.pick('+', '-', '*')} {d.random.randint(-5, 5)}", "exact"
        case "unary":
            return f"torch.{d.pick('neg', 'abs')}({x})", "exact"
        case "compare":
            return f"{x} {d.pick('<', '==', '>=')} {y}", "exact"
        case "great":
            return f"{x} * {d.random.randint(-40_000, 40_000)}", "exact"
        case "sum":
            return f"{x}.{d.pick('sum', 'cumsum')}({d.dim(x)})", "exact"
        case "divide":
            return f"{x} {d.pick('//', '%')} {d.random.randint(1, 70)}", "exact"
        case _:
            return f"{x}.clamp(-6, 6)", "exact"


def _boolean(d: Draw) -> Proposal:
    form = d.pick("compare", "compare", "logical", "not", "where", "number")
    if form in ("compare", "number"):
        x = d.floating()
        other = d.floating() if form == "compare" else d.number()
        return f"{x} {d.pick('<', '<=', '>', '!=', '==')} {other}", "exact"
    mask = d.of(BOOL)
    if form == "not":
        return f"torch.logical_not({mask})", "exact"
    if form == "logical":
        return f"torch.logical_{d.pick('and', 'or', 'xor')}({mask}, {d.of(BOOL)})", "exact"
    return f"torch.where({mask}, {d.floating()}, {d.floating()})", "exact"


def _convert(d: Draw) -> Proposal:
    x = d.tensor()
    dtype = d.pick("torch.float16", "torch.float32", "torch.bool", "torch.int64")
    return f"{x}.to({dtype})", "near" if dtype == "torch.float16" else "exact"


def _reduction(d: Draw) -> Proposal:
    x = d.floating(1)
    dims, keep = d.dims(x), d.random.random() < 0.4
    form = d.pick("sum", "mean", "amax", "amin", "softmax", "log_softmax", "argmax", "cumsum",
                  "all", "var", "norm", "layer_norm", "int", "prod")  # fmt: skip
    match form:
        case "softmax" | "log_softmax":
            return f"torch.{form}({x}, {d.dim(x)})", "sum"
        case "argmax":
            return f"torch.{d.pick('argmax', 'argmin')}({x}, {d.dim(x)})", "exact"
        case "cumsum":
            return f"torch.cumsum({x}, {d.dim(x)})", "sum"
        case "all":
            return f"torch.{d.pick('all', 'any')}({d.of(BOOL)})", "exact"
        case "var" | "norm":
            name = "torch.var" if form == "var" else "torch.linalg.vector_norm"
            return f"{name}({x}, dim={dims}, keepdim={keep})", "sum"
        case "layer_norm":
            return f"F.layer_norm({x}, {x}.shape[-1:])", "sum"
        case "int":
            return f"{d.of(INT)}.{d.pick('sum', 'amax', 'amin')}()", "exact"
        case "prod":
            return f"torch.prod({x}, {d.dim(x)})", "sum"
        case _:
            exact = form in ("amax", "amin")
            return f"torch.{form}({x}, dim={dims}, keepdim={keep})", "exact" if exact else "sum"


def _matmul(d: Draw) -> Proposal:
    x, y = d.floating(2), d.floating(2)
    left, right = d.pick(x, f"{x}.mT"), d.pick(y, f"{y}.mT")
    form = d.pick("plain", "self", "linear")
    if form == "self":
        return f"{x} @ {x}.mT", "sum"
    if form == "linear":
        return f"F.linear({left}, {right})", "sum"
    return f"{left} @ {right}", "sum"


def _view(d: Draw) -> Proposal:
    x = d.tensor(lambda t: t.dim() > 0)
    value = d.scope[x]
    a, b = d.dim(x), d.dim(x)
    extent = value.shape[a]
    start = d.random.randrange(extent)
    length = d.random.randint(1, extent - start)
    form = d.pick("transpose", "narrow", "select", "unsqueeze", "expand", "flatten", "step",
                  "diagonal", "permute", "chunk", "squeeze", "split", "movedim")  # fmt: skip
    order = d.random.sample(range(value.dim()), value.dim())
    divisors = [n for n in range(2, extent) if extent % n == 0]
    kept = ", ".join(["-1"] * value.dim())
    step = d.random.randint(1, 3)
    first = a in (0, -value.dim())
    texts = {
        "transpose": f"{x}.transpose({a}, {b})",
        "narrow": f"{x}.narrow({a}, {start}, {length})",
        "select": f"{x}.select({a}, {start})",
        "unsqueeze": f"{x}.unsqueeze({a})",
        "expand": f"{x}.unsqueeze(0).expand({step + 1}, {kept})",
        "flatten": f"{x}.reshape(-1)",
        "step": f"{x}[{start}::{step}]" if first else f"{x}[..., ::2]",
        "diagonal": f"{x}.diagonal()",
        "permute": f"{x}.permute({', '.join(map(str, order))})",
        "chunk": f"{x}.chunk(2, {a})[0]",
        "squeeze": f"{x}.squeeze()",
        "split": f"{x}.unflatten({a}, (-1, {d.random.choice(divisors or [1])}))",
        "movedim": f"{x}.movedim({a}, {b})",
    }  # fmt: skip
    return texts[form], "view"


def _rearrange(d: Draw) -> Proposal:
    x = d.tensor(lambda t: t.dim() > 0)
    a = d.dim(x)
    form = d.pick("cat", "stack", "flip", "roll", "repeat", "pad", "contiguous", "clone", "tril",
                  "repeat_interleave")  # fmt: skip
    same = d.tensor(lambda t: t.dtype is d.scope[x].dtype and t.dim() == d.scope[x].dim())
    texts = {
        "cat": f"torch.cat([{x}, {same}], {a})",
        "stack": f"torch.stack([{x}, {x}], {a})",
        "flip": f"{x}.flip({a})",
        "roll": f"{x}.roll({d.random.randint(-3, 3)}, {a})",
        "repeat": f"{x}.repeat({', '.join(['2'] + ['1'] * (d.scope[x].dim() - 1))})",
        "pad": f"F.pad({x}, ({d.random.randint(0, 3)}, {d.random.randint(0, 2)}))",
        "contiguous": f"{x}.contiguous()",
        "clone": f"{x}.clone()",
        "tril": f"{x}.{d.pick('tril', 'triu')}({d.random.randint(-2, 2)})",
        "repeat_interleave": f"{x}.repeat_interleave(2, {a})",
    }
    return texts[form], "exact"


def _index(d: Draw) -> Proposal:
    x = d.tensor(lambda t: t.dim() > 0)
    a = d.dim(x)
    extent = d.scope[x].shape[a]
    wanted = [d.random.randrange(extent) for _ in range(d.random.choice((1, 3, 8)))]
    index = f"torch.tensor({wanted}, device={x}.device)"
    form = d.pick("select", "gather", "rows", "topk", "sort", "masked_fill", "embedding", "taken")
    match form:
        case "select":
            return f"torch.index_select({x}, {a}, {index})", "exact"
        case "gather":
            return f"torch.gather({x}, {a}, torch.argsort({x}, {a}, stable=True))", "exact"
        case "rows":
            return f"{x}[torch.tensor([0], device={x}.device)]", "exact"
        case "topk":
            y = d.floating(1)
            return f"torch.topk({y}, 1, {d.dim(y)}).values", "exact"
        case "sort":
            y = d.floating(1)
            return f"torch.sort({y}, {d.dim(y)}).values", "exact"
        case "masked_fill":
            y = d.floating()
            return f"{y}.masked_fill({y} > {d.number()}, {d.number()})", "exact"
        case "embedding":
            y = d.floating(2)
            return f"F.embedding(torch.tensor([0, 0], device={y}.device), {y})", "exact"
        case _:
            b = d.of(INT)
            return f"{b}.clamp(0, {extent - 1}) + 0", "exact"


def _index_from_the_end(d: Draw) -> Proposal:
    x = d.tensor(lambda t: t.dim() > 0)
    a = d.dim(x)
    texts = {
        "fill": f"{x}.index_fill({a}, {d.from_the_end(x, a)}, 1)",
        "put": f"{x}.index_put(({d.from_the_end(x, 0)},), {x}.new_ones(()))",
        "index": f"{x}[..., {d.from_the_end(x, -1)}]",
        "flat": f"{x}.reshape(-1)[{d.from_the_end(x, 0)}]",
    }
    return texts[d.pick(*texts)], "exact"


def _create(d: Draw) -> Proposal:
    x = d.tensor()
    number = d.number()
    return d.pick(
        f"torch.zeros_like({x})",
        f"torch.full_like({x}, 1)",
        f"torch.arange({d.random.randint(1, 70)}, device={x}.device)",
        f"torch.full((3, 5), {number}, device={x}.device)",
        f"{x}.new_ones(4, 66)",
    ), "exact"


def _in_place(d: Draw) -> Proposal:
    x = d.floating()
    y = d.tensor(lambda t: t.dtype == d.scope[x].dtype)
    inner = [x]
    if d.scope[x].dim():
        dim = d.dim(x)
        extent = d.scope[x].shape[dim]
        start = d.random.randrange(extent)
        inner += [f"{x}.narrow({dim}, {start}, {d.random.randint(1, extent - start)})"]
        inner += [f"{x}.select({dim}, {start})", f"{x}.transpose({dim}, {d.dim(x)})"]
        if d.random.random() < 0.2:
            places = d.from_the_end(x, dim)
            written = f"{x}[..., {d.from_the_end(x, -1)}] = {d.number()}"
            return d.pick(f"{x}.index_fill_({dim}, {places}, {d.number()})", written), "near"
    if d.scope[x].dim() >= 2:
        inner += [f"{x}.diagonal()", f"{x}[..., ::2]", f"{x}[1:]"]
    at = d.pick(*inner)
    if at != y and _same_storage(d.scope[x], d.scope[y]):
        # where torch accepts the overlap, the result depends on its order of writing elements
        y = f"{y}.clone()"
    return d.pick(
        f"{at}.add_({d.number()})",
        f"{at}.mul_({d.number()})",
        f"{at}.fill_({d.number()})",
        f"{at}.zero_()",
        f"{at}.add_({y})",
        f"{at}.copy_({y})",
        f"{at}.relu_()",
        f"{at}.masked_fill_({at} > 1.0, {d.number()})",
        f"{at}.clamp_(-1.0, 1.0)",
        f"{at}.copy_({at}.flip(0))",
    ), "near"


def _same_storage(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


FORMS: tuple[tuple[Callable[[Draw], Proposal], float], ...] = (
    (_unary, 2), (_binary, 4), (_integer, 1), (_boolean, 1.5), (_convert, 1), (_reduction, 2.5),
    (_matmul, 1.5), (_view, 4), (_rearrange, 2), (_index, 1.5), (_index_from_the_end, 0.7),
    (_create, 0.7), (_in_place, 2),
)  # fmt: skip


def random_program(seed: int, length: int = 8) -> Program:
    """Return the program of a seed: up to ``length`` statements over one to three inputs."""
    draw = Draw(seed)
    program = Program(seed, _inputs(draw))
    draw.scope = input_tensors(program, "cpu")
    statements: list[Statement] = []
    for _ in range(length * 6):
        if len(statements) == length:
            break
        statement = _proposed(draw, f"t{len(statements)}")
        if statement and _runs(statement, draw.scope):
            statements.append(statement)
    return Program(seed, program.inputs, tuple(statements))


def _inputs(draw: Draw) -> tuple[Input, ...]:
    pick = draw.random
    rank = pick.choice((1, 2, 2, 2, 3, 3, 4))
    shape = tuple(pick.choice(EXTENTS[: len(EXTENTS) - 3 * (rank - 1)]) for _ in range(rank))
    main = pick.choice((HALF, HALF, FLOAT))
    shapes: list[Sequence[int]] = [shape, shape[-1:], shape[::-1]]
    dtypes = [main, main, pick.choice((HALF, FLOAT, INT, BOOL))]
    count = pick.randint(1, 3)
    pairs = zip(shapes[:count], dtypes[:count], strict=True)
    return _with_views(
        draw,
        [
            Input(f"x{number}", tuple(sizes), dtype, pick.randrange(1 << 30))
            for number, (sizes, dtype) in enumerate(pairs)
        ],
    )


VIEWS = ("[..., ::2]", "[..., 1:]", "[..., 0]", "[1:]", "[::3]", "[..., :-1]", ".mT", "")


def _with_views(draw: Draw, inputs: Sequence[Input]) -> tuple[Input, ...]:
    """Replace some inputs by nonempty views of themselves or, rarely, of the input before."""
    chosen: list[Input] = []
    for number, given in enumerate(inputs):
        source = inputs[max(number - draw.random.choice((0, 0, 0, 1)), 0)].name
        view = replace(given, view=f"{source}{draw.pick(*VIEWS)}")
        try:
            seen = input_tensors(Program(0, (*chosen, view)), "cpu")[given.name]
            fits = draw.random.random() < 0.4 and seen.numel() > 0
        except (IndexError, RuntimeError):
            fits = False
        chosen.append(view if fits else given)
    return tuple(chosen)


def _proposed(draw: Draw, name: str) -> Statement | None:
    form = draw.random.choices([f for f, _ in FORMS], [w for _, w in FORMS])[0]
    draw.reads = []
    try:
        text, kind = form(draw)
    except (LookupError, ValueError):
        return None
    target = "" if form is _in_place else name
    reads = tuple(dict.fromkeys(word for word in draw.reads if word in text))
    return Statement(target, text, reads, kind)


def _runs(statement: Statement, scope: Tensors) -> bool:
    """Run a statement on the CPU; return True if torch accepts it and its values are in range."""
    written = statement.reads[0]
    before = None if statement.target else scope[written].clone()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            execute(statement, scope)
    except (RuntimeError, IndexError, TypeError, ValueError):
        accepted = False
    else:
        accepted = _in_range(scope[statement.target or written])
    if not accepted and before is None:
        scope.pop(statement.target, None)
    elif not accepted and before is not None and _writable(scope[written]):
        scope[written].copy_(before)
    return accepted


def _writable(tensor: torch.Tensor) -> bool:
    return all(s > 0 or n == 1 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _in_range(result: torch.Tensor) -> bool:
    if not 0 < result.numel() <= MAX_ELEMENTS or result.dim() > 5:
        return False
    if not result.is_floating_point():
        return result.dtype is BOOL or bool(result.abs().max() < 1 << 31)
    size = result.abs().float()
    tiny = (size > 0) & (size < MIN_MAGNITUDE)
    return bool(torch.isfinite(size).all() and size.max() < MAX_MAGNITUDE and not tiny.any())
