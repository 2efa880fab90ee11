"""Reads kernels written in the document's form (`OpSpec`), as tests write them by hand.

Independent of `op_spec_form`: coordinates, weighted with the strides of the row-major buffer, are
sums of symbols, floors and remainders; the steps of a symbol give its pitches. The last coordinate
names the symbol along the lanes of the sticks. An enclosing loop continues where a tile ends.
``op_info["indirect"]`` of a gather is (name, along, rows): the table's coordinates hold the symbol
``name``, the symbol ``along`` steps through the index, and ``rows`` are those of the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from math import gcd, inf, lcm, prod
from typing import Any

import msgspec
import sympy
from msgspec.structs import replace

from spyre.dtypes import FORMATS, STICK_BYTES
from spyre.hw.ops import Family, find_op
from spyre.layout import DeviceView, Factor
from spyre.mlir.builder import POOL
from spyre.torch_backend.inductor.bundles.generation import (
    UNKNOWN_COUNT,
    LoopCounts,
    inexpressible,
    not_divisible,
)
from spyre.torch_backend.inductor.bundles.kernel_op import (
    HBM,
    LX,
    Kernel,
    KernelLoop,
    KernelOp,
    KernelTensor,
    integer,
    plain_expression,
    roles_of,
)
from spyre.torch_backend.inductor.bundles.op_spec_form import (
    INDIRECT,
    SEGMENT_BYTES,
    LoopSpec,
    OpSpec,
    Spec,
    TensorArg,
)
from spyre.torch_backend.program import IterationDim, LoweringError, OpKind, cut


class NotAffine(ValueError):
    """An expression is no sum of symbols, floors and remainders; the text says what it has."""


class AffineTerm(msgspec.Struct, frozen=True):
    """A symbol, or by ``kind`` the floor or the remainder ("mod") of ``inner`` by ``divisor``."""

    kind: str
    symbol: str = ""
    inner: AffineForm | None = None
    divisor: int = 1


class AffineForm(msgspec.Struct, frozen=True):
    """``constant`` plus the sum of ``terms``, (what, coefficient) pairs without zeros."""

    terms: frozenset[tuple[AffineTerm, Fraction]] = frozenset()
    constant: Fraction = Fraction(0)

    def __add__(self, other: AffineForm) -> AffineForm:
        terms = dict(self.terms)
        for term, factor in other.terms:
            terms[term] = terms.get(term, Fraction(0)) + factor
        return form_of(terms, self.constant + other.constant)

    def times(self, factor: Fraction | int) -> AffineForm:
        """Every coefficient multiplied."""
        return form_of({t: f * factor for t, f in self.terms}, self.constant * factor)

    def without(self, term: AffineTerm) -> AffineForm:
        """The form with that term left out."""
        return form_of({t: f for t, f in self.terms if t != term}, self.constant)


def form_of(terms: Mapping[AffineTerm, Fraction], constant: Fraction | int = 0) -> AffineForm:
    """A form; terms of coefficient 0 vanish."""
    return AffineForm(frozenset((t, f) for t, f in terms.items() if f), Fraction(constant))


def floor_of(inner: AffineForm, divisor: int) -> AffineTerm:
    """The floor of a quotient; that of another floor is one of the product."""
    if len(inner.terms) == 1 and not inner.constant:
        ((term, factor),) = inner.terms
        if term.kind == "floor" and term.inner is not None and factor == 1:
            return AffineTerm("floor", "", term.inner, term.divisor * divisor)
    return AffineTerm("floor", "", inner, divisor)


class AffineReader(msgspec.Struct, frozen=True):
    """Reads expressions over symbols that count from 0 to below ``extents``."""

    extents: Mapping[str, int]

    def read(self, expression: Any) -> AffineForm:
        """The form of an expression. NotAffine where it has none."""
        return self._read(plain_expression(expression))

    def _read(self, e: sympy.Expr) -> AffineForm:
        if e.is_Rational:
            return AffineForm(constant=_fraction(e))
        if e.is_Symbol:
            if e.name not in self.extents:
                raise NotAffine(f"{e.name}, no symbol of the iteration")
            if self.extents[e.name] == 1:
                return AffineForm()
            return form_of({AffineTerm("symbol", e.name): Fraction(1)})
        if e.is_Add:
            return sum((self._read(a) for a in e.args), AffineForm())
        if e.is_Mul:
            return self._product(e)
        if isinstance(e, sympy.floor):
            return self.floor(self._read(e.args[0]))
        if isinstance(e, sympy.Mod) and e.args[1].is_Rational and e.args[1] > 0:
            return self._remainder(self._read(e.args[0]), _fraction(e.args[1]))
        raise NotAffine(str(e))

    def _product(self, e: sympy.Expr) -> AffineForm:
        number, rest = e.as_coeff_Mul()
        if not number.is_Rational or rest.is_Mul:
            raise NotAffine(str(e))
        return self._read(rest).times(_fraction(number))

    def floor(self, form: AffineForm) -> AffineForm:
        """The greatest integer below."""
        scale = _denominator(form)
        return self._divided(form.times(scale), scale)[0]

    def _remainder(self, form: AffineForm, divisor: Fraction) -> AffineForm:
        scale = lcm(_denominator(form), divisor.denominator)
        return self._divided(form.times(scale), int(divisor * scale))[1].times(Fraction(1, scale))

    def _divided(self, form: AffineForm, divisor: int) -> tuple[AffineForm, AffineForm]:
        """Quotient and remainder of a form of integers."""
        high = {t: Fraction(int(f) // divisor) for t, f in form.terms}
        low = form_of({t: f % divisor for t, f in form.terms}, form.constant % divisor)
        quotient = form_of(high, int(form.constant) // divisor)
        if self.largest(low) < divisor:
            return quotient, low
        unit = gcd(divisor, *(int(f) for _, f in low.terms))
        inner = form_of({t: f / unit for t, f in low.terms}, int(low.constant) // unit)
        rest = AffineForm(constant=low.constant % unit)
        step = divisor // unit
        one, mod = {floor_of(inner, step): Fraction(1)}, AffineTerm("mod", "", inner, step)
        return quotient + form_of(one), form_of({mod: Fraction(unit)}) + rest

    def largest(self, form: AffineForm) -> Fraction:
        """Return an upper bound of a form with non-negative coefficients."""
        rising = (f * self._largest(t) for t, f in form.terms if f > 0)
        return form.constant + sum(rising, Fraction(0))

    def _largest(self, term: AffineTerm) -> int:
        if term.inner is None:
            return self.extents[term.symbol] - 1
        whole = int(self.largest(term.inner))
        return whole // term.divisor if term.kind == "floor" else min(whole, term.divisor - 1)


def collapsed(form: AffineForm) -> AffineForm:
    """The form with every ``k*floor(x/k) + Mod(x, k)`` in it written as x."""
    factors = dict(form.terms)
    for term, factor in form.terms:
        if term.kind != "mod" or term.inner is None:
            continue
        floor = floor_of(term.inner, term.divisor)
        if factors.get(floor) == factor * term.divisor:
            return collapsed(form.without(term).without(floor) + term.inner.times(factor))
    return form


def _fraction(number: sympy.Rational) -> Fraction:
    return Fraction(int(number.p), int(number.q))


def _denominator(form: AffineForm) -> int:
    return lcm(form.constant.denominator, *(f.denominator for _, f in form.terms))


class Digit(msgspec.Struct, frozen=True):
    """A digit of a symbol that counts ``unit`` elements: ``pitch_bytes`` from one to the next, or
    from stick to stick where it runs along the lanes.
    """

    unit: int
    pitch_bytes: int
    lane: bool = False


class SymbolDigits(msgspec.Struct, frozen=True):
    """All digits of a symbol, the innermost first. ``lanes``: elements of a stick."""

    steps: tuple[Digit, ...]
    lanes: int

    def factors(self, extent: int) -> tuple[Factor, ...]:
        """Its first ``extent`` elements as factors, the outermost first. NotAffine if the digits
        cut them unevenly.
        """
        units = [step.unit for step in self.steps if step.unit < extent] + [extent]
        pairs = list(itertools.pairwise(units))
        if any(upper % lower for lower, upper in pairs):
            raise NotAffine(f"tiles of {extent} elements in steps of {units[-2]}")
        factors = [
            Factor(upper // lower, step.pitch_bytes, step.lane)
            for step, (lower, upper) in zip(self.steps, pairs, strict=False)
        ]
        return tuple(reversed(factors))

    def stride_bytes(self, elements: int, count: int) -> int:
        """Bytes that ``elements`` move it by, the same ``count`` times. NotAffine if they vary."""
        fitting = [k for k, step in enumerate(self.steps) if elements % step.unit == 0]
        k = fitting[-1]
        step = self.steps[k]
        unit = self.lanes if step.lane else step.unit
        above = self.steps[k + 1].unit if k + 1 < len(self.steps) else inf
        if (elements % unit and step.pitch_bytes) or elements * count > above:
            raise NotAffine(f"{count} tiles of {elements} elements, in steps of {unit}")
        return elements // unit * step.pitch_bytes


class _DigitRange(msgspec.Struct, frozen=True):
    """``floor(Mod(symbol, end)/begin)``."""

    symbol: str
    begin: int
    end: float


def symbol_digits(
    address: AffineForm, lane: AffineTerm | None, lanes: int
) -> dict[str, SymbolDigits]:
    """Return the digits of every symbol in ``address`` (bytes). ``lane``: the term that counts the
    lanes of sticks of ``lanes`` elements. NotAffine if digits mix symbols, or do not nest.
    """
    terms: dict[str, list[tuple[_DigitRange, Fraction]]] = {}
    for term, factor in address.terms:
        digits = _digit_range(term)
        terms.setdefault(digits.symbol, []).append((digits, factor))
    along = None if lane is None else _digit_range(lane)
    if along is not None:
        if along.begin != 1 or along.end not in (lanes, inf):
            raise NotAffine(f"lanes that {term_text(lane)} counts")
        terms.setdefault(along.symbol, [])
    by_symbol = {}
    for symbol, walks in terms.items():
        is_lane = along is not None and along.symbol == symbol
        cut = is_lane and along is not None and along.end == lanes
        steps = _cut_digits(walks, lanes if cut else 0)
        if is_lane:
            steps = _along_lanes(steps, lanes, cut)
        by_symbol[symbol] = SymbolDigits(_joined_digits(steps, lanes), lanes)
    return by_symbol


def _digit_range(term: AffineTerm) -> _DigitRange:
    if term.inner is None:
        return _DigitRange(term.symbol, 1, inf)
    if term.inner.constant or len(term.inner.terms) != 1:
        raise NotAffine(term_text(term))
    ((inner, factor),) = term.inner.terms
    below = _digit_range(inner)
    if factor != 1:
        raise NotAffine(term_text(term))
    if term.kind == "floor":
        return replace(below, begin=below.begin * term.divisor)
    return replace(below, end=min(below.end, below.begin * term.divisor))


def _cut_digits(walks: Sequence[tuple[_DigitRange, Fraction]], lanes: int) -> list[Digit]:
    """Digits with their pitches, cut at ``lanes`` too where that is not 0."""
    units = {1, *({lanes} if lanes else ())}
    for digits, _ in walks:
        units |= {digits.begin, *({int(digits.end)} if digits.end < inf else ())}
    ordered = sorted(units)
    if any(upper % lower for lower, upper in itertools.pairwise(ordered)):
        raise NotAffine(f"digits of {ordered} elements")
    steps = []
    for unit in ordered:
        held = [(d, f) for d, f in walks if d.begin <= unit < d.end]
        pitch = sum((f * (unit // d.begin) for d, f in held), Fraction(0))
        if pitch < 0 or pitch.denominator > 1:
            raise NotAffine(f"a pitch of {pitch} bytes")
        steps.append(Digit(unit, int(pitch)))
    return steps


def _along_lanes(steps: Sequence[Digit], lanes: int, has_sticks: bool) -> list[Digit]:
    """The digits below a stick and those that count its sticks as one."""
    inside = [step for step in steps if step.unit < lanes or not has_sticks]
    if len(inside) != 1 or inside[0].pitch_bytes:
        raise NotAffine("a symbol along the lanes that also counts sticks otherwise")
    if not has_sticks:
        return [Digit(1, STICK_BYTES, True)]
    if not steps[1].pitch_bytes:
        raise NotAffine("sticks that follow each other at no pitch")
    return [Digit(1, steps[1].pitch_bytes, True), *steps[2:]]


def _joined_digits(steps: Sequence[Digit], lanes: int) -> tuple[Digit, ...]:
    """Digits, those left out that the one below goes on into."""
    digits = [steps[0]]
    for step in steps[1:]:
        last = digits[-1]
        unit = lanes if last.lane else last.unit
        if step.pitch_bytes * unit != last.pitch_bytes * step.unit:
            digits.append(step)
    return tuple(digits)


def term_text(term: AffineTerm | None) -> str:
    """A term as people write it."""
    if term is None or term.inner is None:
        return term.symbol if term is not None else "0"
    inner = form_text(term.inner)
    if term.kind == "floor":
        return f"floor(({inner})/{term.divisor})"
    return f"Mod({inner}, {term.divisor})"


def form_text(form: AffineForm) -> str:
    """A form as people write it."""
    terms = [f"{f}*{term_text(t)}" for t, f in form.terms]
    return " + ".join([*sorted(terms), *([str(form.constant)] if form.constant else [])])


def is_dynamic(expression: Any, iteration: Sequence[str] = ()) -> bool:
    """Return True if an expression has symbols that are not in the iteration."""
    symbols = sympy.sympify(expression).free_symbols
    return any(s.name not in iteration for s in symbols)


def lanes_of(arg: TensorArg) -> int:
    """Elements of a stick."""
    return FORMATS[str(arg.device_dtype)].elements_per_stick


class DynamicWalk(msgspec.Struct, frozen=True):
    """``inside``: one tile's view of the tensor, without terms of sizes. ``shift_bytes``: these
    terms of its begin. ``rows``: (coordinate, pitch in bytes) of the dims outside of a stick.
    """

    inside: TensorArg
    shift_bytes: sympy.Expr
    rows: tuple[tuple[sympy.Expr, sympy.Expr], ...]
    lane: sympy.Expr
    lanes: int

    def stride_bytes(self, symbol: str, elements: int, count: int) -> sympy.Expr:
        """Bytes that ``elements`` of a symbol move it by, the same ``count`` times. NotAffine if
        they vary.
        """
        named = {s.name for s in self.lane.free_symbols}
        if symbol in named and elements % self.lanes:
            raise NotAffine(f"tiles of {elements} lanes of {self.lanes}")
        stride = sympy.Integer(0)
        for coordinate, pitch in self.rows:
            if symbol not in {s.name for s in coordinate.free_symbols}:
                continue
            extents = {s.name: elements * count for s in coordinate.free_symbols}
            form = collapsed(AffineReader(extents).read(coordinate))
            steps = symbol_digits(form, None, self.lanes)
            if symbol in steps:
                stride += steps[symbol].stride_bytes(elements, count) * pitch
        return sympy.expand(stride)


def dynamic_walk(arg: TensorArg, tile: Mapping[str, int]) -> DynamicWalk:
    """Return the walk of ``arg`` for tiles of ``tile`` elements by symbol. NotAffine if a tile is
    not in one piece, so that pitches within it depend on sizes.
    """
    sizes, pitches = [plain_expression(n) for n in arg.within or arg.device_size], []
    pitch = sympy.Integer(STICK_BYTES)
    for size in reversed(sizes[:-1]):
        pitches.append(pitch)
        pitch = pitch * size
    pitches.reverse()
    *outer, lane = map(plain_expression, arg.device_coordinates)
    shift, rows, inside = sympy.Integer(0), [], []
    for coordinate, pitch in zip(outer, pitches, strict=True):
        moving, begin = _split(coordinate, tile)
        shift += begin * pitch
        if is_dynamic(pitch):
            shift += _constant(moving, tile) * pitch
            moving_inside = sympy.Integer(0)
        else:
            moving_inside = moving
        rows.append((moving, pitch))
        inside.append(moving_inside)
    seen = [_numbered(size) for size in sizes]
    whole = replace(arg, device_size=seen, within=(), device_coordinates=[*inside, lane])
    return DynamicWalk(whole, sympy.expand(shift), tuple(rows), lane, lanes_of(arg))


UNBOUNDED = 1 << 40
"""Length of a device dim of unknown length in checks of a tile's bounds."""


def _numbered(size: sympy.Expr) -> Any:
    return UNBOUNDED if is_dynamic(size) else size


def _split(coordinate: sympy.Expr, tile: Mapping[str, int]) -> tuple[sympy.Expr, sympy.Expr]:
    """Split a coordinate into terms of the iteration, and terms of sizes."""
    terms = sympy.Add.make_args(sympy.expand(coordinate))
    symbols = tuple(tile)
    sized = [t for t in terms if is_dynamic(t, symbols)]
    for term in sized:
        if any(s.name in tile for s in term.free_symbols):
            raise NotAffine(str(term))
    begin = sum(sized, sympy.Integer(0))
    return sympy.Add(*(t for t in terms if t not in sized)), begin


def _constant(moving: sympy.Expr, tile: Mapping[str, int]) -> sympy.Expr:
    """The one place a tile has along a pitch that depends on sizes."""
    form: AffineForm = collapsed(AffineReader(tile).read(moving))
    if form.terms:
        raise NotAffine(f"{moving} within a tile, at a pitch that only a launch knows,")
    return sympy.Rational(form.constant.numerator, form.constant.denominator)


_POINTWISE_FAMILIES = (Family.ELEMENTWISE, Family.COPY, Family.CONVERT, Family.REQUANTIZE)
_KINDS = dict.fromkeys(_POINTWISE_FAMILIES, OpKind.POINTWISE) | {
    Family.REDUCTION: OpKind.REDUCTION,
    Family.MATMUL: OpKind.MATMUL,
    Family.RESTICKIFY: OpKind.RESTICKIFY,
    Family.TOPK: OpKind.TOPK,
}
_INPUT_COUNTS = {OpKind.MATMUL: 2, OpKind.RESTICKIFY: 1, OpKind.REDUCTION: 1}
_INPUT_COUNTS |= {OpKind.TOPK: 1, OpKind.GATHER: 2}
OP_INFO = ("constants", "mask_from", "lane_multiple", "part", "k_fast", INDIRECT)
"""Keys of ``op_info``: constant name → bits as float32; fields of the program's `OpSpec`; False
where cores that add up one tile of a matmul have no neighbouring numbers; how a gather reads its
table.
"""


def kernel_of(specs: Sequence[Spec], sizes: Collection[str] = ()) -> Kernel:
    """Return ``specs`` as a kernel: compiled kernels' operations unchanged, the document's read.

    ``sizes``: names of those that only a launch knows, which counts of loops may hold.
    UnsupportedError SPY960 for operations without an SDSC, SPY961 for a work division that does
    not fit, SPY964 for counts and extents that a launch does not determine.
    """
    return tuple(_read(specs, (), sizes))


def _read(
    specs: Sequence[Spec], loops: LoopCounts, sizes: Collection[str]
) -> Iterator[KernelOp | KernelLoop]:
    for spec in specs:
        match spec:
            case LoopSpec():
                count = sympy.sympify(spec.count)
                names = {symbol.name for symbol in count.free_symbols}
                is_sized = bool(names) and names <= set(sizes)
                known = UNKNOWN_COUNT if is_sized else integer(count, "loop count")
                inside = (*loops, (f"i_{len(loops)}", known))
                body = tuple(_read(spec.body, inside, sizes))
                yield KernelLoop(count if is_sized else known, body)
            case OpSpec():
                yield _operation(spec, loops)


def _operation(spec: OpSpec, loops: LoopCounts) -> KernelOp:
    kind, name = _kind_of(spec)
    args = sorted(spec.args, key=lambda arg: not arg.is_input)
    views, row_pitch = _views(spec, args, loops)
    try:
        dims, cores, numbering = _dims(spec, [operand.view for operand in views])
    except LoweringError as error:
        raise inexpressible(spec.op, "its tensors", error.finding.found) from error
    if row_pitch is not None and not any(dim.role for dim in dims):
        # An SDSC has a dim for the rows of a gather, however few (SDSC reference §6.4).
        row = (Factor(1, row_pitch), Factor(1, STICK_BYTES), Factor(1, STICK_BYTES))
        dims, cores, numbering = (
            [*dims, IterationDim(1, row, 1)],
            [*cores, 1],
            [*numbering, len(dims)],
        )
    tensors = tuple(
        _tensor(spec, arg, operand, [dim.factors[k] for dim in dims], loops)
        for k, (arg, operand) in enumerate(zip(args, views, strict=True))
    )
    is_gather = row_pitch is not None
    roles = [dim.role for dim in dims] if is_gather else roles_of(kind, tensors, len(dims))
    info = spec.op_info
    return KernelOp(
        name,
        kind,
        tuple(dim.extent for dim in dims),
        tensors,
        tuple(roles),
        tuple(cores),
        tuple(info.get("constants", {}).items()),
        int(info.get("mask_from", 0)),
        int(info.get("lane_multiple", 0)),
        info[INDIRECT][2] if is_gather else 0,
        bool(info.get("k_fast", True)),
        (-1,) * len(loops),
        tuple(numbering),
    )


def _kind_of(spec: OpSpec) -> tuple[OpKind, str]:
    """Return the kind of ``spec``. UnsupportedError SPY960 for an unknown name, and for an
    operation that its tensors' coordinates do not fully describe.
    """
    row = find_op(spec.op)
    if row is None:
        raise inexpressible(spec.op, "it", "a name without an SDSC")
    kind = _KINDS.get(row.family)
    if kind is None:
        raise inexpressible(spec.op, "it", f"a {row.family} operation")
    if INDIRECT in spec.op_info:
        kind = OpKind.GATHER
    _check_form(spec, kind)
    unknown = [key for key in spec.op_info if key not in OP_INFO]
    if unknown:
        hint = f"known: {', '.join(OP_INFO)}"
        raise inexpressible(spec.op, "it", f"op_info {unknown[0]!r}", hint)
    return kind, row.name


def _check_form(spec: OpSpec, kind: OpKind) -> None:
    inputs = sum(arg.is_input for arg in spec.args)
    outputs = len(spec.args) - inputs
    if inputs != _INPUT_COUNTS.get(kind, inputs) or outputs != 1:
        raise inexpressible(spec.op, "it", f"{inputs} inputs and {outputs} outputs of {spec.op}")
    if kind in (OpKind.POINTWISE, OpKind.REDUCTION) and spec.is_reduction != (
        kind is OpKind.REDUCTION
    ):
        raise inexpressible(spec.op, "it", f"{spec.op} with is_reduction={spec.is_reduction}")


def _dims(
    spec: OpSpec, views: Sequence[DeviceView]
) -> tuple[list[IterationDim], list[int], list[int]]:
    """The symbols' dims, cut where a tensor has other pitches, how many cores share each, and the
    order of core numbers: a symbol's pieces in turn, the innermost first.
    """
    dims: list[IterationDim] = []
    shares: list[int] = []
    numbering: list[int] = []
    along = spec.op_info.get(INDIRECT, ("", "", 0))[1]
    for k, (symbol, (extent, cores)) in enumerate(spec.iteration_space.items()):
        factors = [view.dims[k] for view in views]
        pieces = cut(int(extent), factors, views, int(str(symbol) == along)) if factors[0] else []
        if cores > 1 and not pieces:
            raise not_divisible(spec.op, f"{cores} slices of one element along {symbol}")
        for piece in pieces:
            slices = cores if piece is pieces[-1] else gcd(cores, piece.extent)
            cores //= slices
            dims.append(piece)
            shares.append(slices)
        numbering += range(len(dims) - 1, len(dims) - 1 - len(pieces), -1)
    return dims, shares, numbering


def _tensor(
    spec: OpSpec, arg: TensorArg, operand: ArgView, factors: Sequence[Factor], loops: LoopCounts
) -> KernelTensor:
    memory, start = _allocation(spec, arg, operand)
    sizes = [plain_expression(n) for n in (arg.within or arg.device_size)]
    size_bytes = prod(sizes[:-1], start=sympy.Integer(STICK_BYTES))
    return KernelTensor(
        str(arg.device_dtype),
        tuple(factor.pitch_bytes for factor in factors),
        next((k for k, factor in enumerate(factors) if factor.lane), -1),
        arg.arg_index,
        memory,
        start,
        int(size_bytes) if size_bytes.is_Integer else size_bytes,
        operand.view.offset_bytes,
        tuple(operand.loop_strides.get(loop, 0) for loop, _ in loops),
        operand.shift_bytes,
        arg.per_tile_fixed,
        tuple(int(n) if n.is_Integer else n for n in sizes),
    )


def _allocation(spec: OpSpec, arg: TensorArg, operand: ArgView) -> tuple[str, int]:
    """Return the memory of the buffer, and its start."""
    match dict(arg.allocation):
        case {"lx": start} if len(arg.allocation) == 1 and not operand.view.offset_bytes:
            return LX, start
        case {"pool": start} if len(arg.allocation) == 1:
            return POOL, start
        case {"hbm": start} if len(arg.allocation) == 1 and arg.arg_index >= 0:
            return HBM, start % SEGMENT_BYTES
    text = f"allocation {dict(arg.allocation)}, from byte {operand.view.offset_bytes} on"
    hint = "one of hbm (of an argument), pool, and lx (from the start of the tensor on)"
    raise inexpressible(spec.op, _arg_name(spec, arg), text, hint)


def _views(
    spec: OpSpec, args: Sequence[TensorArg], loops: LoopCounts
) -> tuple[list[ArgView], int | None]:
    """Return the views of the tensors, and for a gather the bytes between rows of its table."""
    if INDIRECT not in spec.op_info:
        views = [arg_view(spec, arg, loops) for arg in args]
        return [*views[:-1], _part(spec, views[-1])], None
    if loops:
        raise inexpressible(spec.op, "its table", "a gather in a loop")
    table, row_pitch = table_view(spec)
    return [table, *(arg_view(spec, arg) for arg in args[1:])], row_pitch


def _part(spec: OpSpec, operand: ArgView) -> ArgView:
    """The output from the place on that ``part`` (symbol's number, start, length) names."""
    if "part" not in spec.op_info:
        return operand
    dim, start, length = spec.op_info["part"]
    factors, lanes = operand.view.dims[dim], operand.view.elements_per_stick
    unit = lanes if factors and factors[0].lane else 1
    if len(factors) != 1 or factors[0].extent != length or start % unit:
        raise inexpressible(spec.op, "its output", f"part {(dim, start, length)}")
    offset_bytes = operand.view.offset_bytes + start // unit * factors[0].pitch_bytes
    return replace(operand, view=replace(operand.view, offset_bytes=offset_bytes))


def table_view(spec: OpSpec) -> tuple[ArgView, int]:
    """The table of a gather, with as many rows as the output has, and the bytes from row to row.

    UnsupportedError SPY960 for one whose rows do not follow each other at one pitch.
    """
    name, along, count = spec.op_info[INDIRECT]
    space = {**spec.iteration_space, sympy.Symbol(name): (sympy.Integer(count), 1)}
    view = arg_view(replace(spec, iteration_space=space), spec.args[0]).view
    *dims, factors = view.dims
    if len(factors) > 1 or any(factor.lane for factor in factors):
        raise inexpressible(spec.op, "its table", f"rows along {factors}")
    tile = tile_extents(spec)
    place, row_pitch = list(tile).index(along), factors[0].pitch_bytes if factors else STICK_BYTES
    dims[place] = (Factor(tile[along], row_pitch),) if tile[along] > 1 else ()
    return ArgView(DeviceView(tuple(dims), view.device_format, view.offset_bytes), {}), row_pitch


# --- where a tensor lies -------------------------------------------------------------------------


class ArgView(msgspec.Struct, frozen=True):
    """One tensor of an operation.

     ``view``: one dim per symbol, over one tile; of pitch 0 where it has no elements of its own.
    ``loop_strides``: bytes by which the enclosing loops move it. ``shift_bytes``: part of its begin
    that depends on a launch's sizes, as strides may.
    """

    view: DeviceView
    loop_strides: Mapping[str, int | sympy.Expr]
    shift_bytes: int | sympy.Expr = 0


def _arg_name(spec: OpSpec, arg: TensorArg) -> str:
    """Return a tensor's name in messages: its place in the operation and in memory."""
    number = next((k for k, other in enumerate(spec.args) if other is arg), 0)
    kind, address = next(iter(arg.allocation.items()), (HBM, 0))
    where = f"argument {arg.arg_index}" if arg.arg_index >= 0 else f"{kind} {address}"
    return f"tensor {number} ({where})"


def tile_extents(spec: OpSpec) -> dict[str, int]:
    """Elements of one tile by symbol, in the order of the iteration space.

    UnsupportedError SPY964 for extents that only a launch knows.
    """
    return {str(s): integer(n, f"{spec.op}: {s}") for s, (n, _) in spec.iteration_space.items()}


def arg_view(spec: OpSpec, arg: TensorArg, loops: LoopCounts = ()) -> ArgView:
    """Return the place of ``arg``, and its moves by ``loops``. UnsupportedError SPY960, SPY964."""
    tile = tile_extents(spec)
    steps = _loop_steps(spec, arg, tile, loops)
    if is_dynamic_arg(arg):
        return _dynamic_view(spec, arg, tile, steps)
    extents = dict(tile)
    for symbol, step, count in steps.values():
        extents[symbol] = max(extents[symbol], step * count)
    try:
        walk = _tile_walk(spec, arg, extents)
        dims = tuple(walk.factors(symbol, extent) for symbol, extent in tile.items())
        strides = {loop: walk.stride_bytes(*step) for loop, step in steps.items()}
    except NotAffine as error:
        reason = f"{error} in {_shown(arg.device_coordinates)}"
        raise inexpressible(spec.op, _arg_name(spec, arg), reason) from error
    view = DeviceView(dims, str(arg.device_dtype), walk.offset_bytes)
    return ArgView(view, {loop: stride for loop, stride in strides.items() if stride})


def is_dynamic_arg(arg: TensorArg) -> bool:
    """Return True if the place of ``arg`` depends on a launch's sizes."""
    return any(is_dynamic(number) for number in (*arg.device_size, *arg.within))


def _dynamic_view(
    spec: OpSpec,
    arg: TensorArg,
    tile: Mapping[str, int],
    steps: Mapping[str, tuple[str, int, int]],
) -> ArgView:
    """`arg_view` of a tensor with pitches that only a launch knows: only loops move along them."""
    try:
        sized = dynamic_walk(arg, tile)
        walk = _tile_walk(spec, sized.inside, tile)
        dims = tuple(walk.factors(symbol, extent) for symbol, extent in tile.items())
        strides = {loop: sized.stride_bytes(*step) for loop, step in steps.items()}
    except NotAffine as error:
        reason = f"{error} in {_shown(arg.device_coordinates)}"
        raise inexpressible(spec.op, _arg_name(spec, arg), reason) from error
    view = DeviceView(dims, str(arg.device_dtype), walk.offset_bytes)
    return ArgView(view, {loop: s for loop, s in strides.items() if s != 0}, sized.shift_bytes)


def _loop_steps(
    spec: OpSpec, arg: TensorArg, tile: Mapping[str, int], loops: LoopCounts
) -> dict[str, tuple[str, int, int]]:
    """Per loop that moves ``arg``: symbol, elements it moves on by, iterations.

    Of two loops over one symbol the outer one goes on where all tiles of the inner one end.
    """
    steps: dict[str, tuple[str, int, int]] = {}
    if arg.per_tile_fixed or LX in arg.allocation or not spec.tiled_symbols:
        return steps
    if len(spec.tiled_symbols) != len(loops):
        text = f"{len(spec.tiled_symbols)} tiled symbols in {len(loops)} loops"
        raise inexpressible(spec.op, "every tensor", text, "one symbol, or 0, per enclosing loop")
    reached = dict(tile)
    for symbol, (loop, count) in reversed([*zip(spec.tiled_symbols, loops, strict=True)]):
        name = str(symbol)
        if name not in tile:
            if plain_expression(symbol) != 0:
                raise inexpressible(spec.op, "every tensor", f"loop {loop} tiles unknown {name}")
            continue
        steps[loop] = (name, reached[name], count)
        reached[name] *= count
    return dict(reversed(steps.items()))


class _TileWalk(msgspec.Struct, frozen=True):
    """Digits per symbol that moves the tensor."""

    steps: Mapping[str, SymbolDigits]
    offset_bytes: int

    def factors(self, symbol: str, extent: int) -> tuple[Factor, ...]:
        if extent == 1:
            return ()
        return self.steps[symbol].factors(extent) if symbol in self.steps else (Factor(extent, 0),)

    def stride_bytes(self, symbol: str, elements: int, count: int) -> int:
        return self.steps[symbol].stride_bytes(elements, count) if symbol in self.steps else 0


def buffer_size(arg: TensorArg) -> tuple[int, ...]:
    """Device size of the buffer whose pitches count."""
    return tuple(int(n) for n in (arg.within or arg.device_size))


def _tile_walk(spec: OpSpec, arg: TensorArg, extents: Mapping[str, int]) -> _TileWalk:
    reader, size, lanes = AffineReader(extents), buffer_size(arg), lanes_of(arg)
    if size[-1] != lanes or len(size) != len(arg.device_coordinates):
        raise NotAffine(f"device size {list(size)} with sticks of {lanes} elements")
    *outer, last = [reader.read(e) for e in arg.device_coordinates]
    _check_reach(spec, arg, reader, [*outer, last])
    address, pitch = AffineForm(), STICK_BYTES
    for coordinate, extent in zip(reversed(outer), reversed(size[:-1]), strict=True):
        address += coordinate.times(pitch)
        pitch *= extent
    if last.constant or len(last.terms) > 1 or any(f != 1 for _, f in last.terms):
        raise NotAffine(f"lanes that {form_text(last)} counts")
    lane = next((term for term, _ in last.terms), None)
    if address.constant.denominator > 1:
        raise NotAffine(f"byte {address.constant}")
    return _TileWalk(symbol_digits(collapsed(address), lane, lanes), int(address.constant))


def _check_reach(
    spec: OpSpec, arg: TensorArg, reader: AffineReader, coordinates: Sequence[AffineForm]
) -> None:
    for form, extent, text in zip(
        coordinates, buffer_size(arg), arg.device_coordinates, strict=True
    ):
        reach = reader.largest(collapsed(form))
        if reach >= extent or form.constant < 0:
            walked = f"{text} from {form.constant} to {reach}, along a device dim of {extent}"
            hint = "a tile of a larger buffer names its device size in `within`"
            raise inexpressible(spec.op, _arg_name(spec, arg), walked, hint)


def _shown(coordinates: Sequence[sympy.Expr]) -> str:
    return f"[{', '.join(map(str, coordinates))}]"
