"""Coordinates as pitches: the same addresses, element by element, or an error."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import pytest
import sympy
from hypothesis import assume, given, settings, strategies as st

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.bundles.coordinates import AffineReader, NotAffine, collapsed
from spyre.torch_backend.inductor.bundles.reader import arg_view
from tests.torch_backend.inductor.bundles.spec_cases import arg, op

BUILTINS = {"floor": math.floor, "Mod": lambda a, b: a % b, "__builtins__": {}}


@functools.lru_cache(maxsize=512)
def compiled(text):
    return compile(text, "expression", "eval")


def value(expression, point):
    """An expression at integers, exactly."""
    names = {name: Fraction(number) for name, number in point.items()}
    return eval(compiled(str(expression)), dict(BUILTINS), names)


def points(extents):
    for row in itertools.product(*map(range, extents.values())):
        yield dict(zip(extents, row, strict=True))


def form_value(form, point):
    total = form.constant
    for term, factor in form.terms:
        total += factor * term_value(term, point)
    return total


def term_value(term, point):
    if term.inner is None:
        return point[term.symbol]
    quotient, rest = divmod(form_value(term.inner, point), term.divisor)
    return quotient if term.kind == "floor" else rest


SYMBOLS = st.sampled_from(["c0", "c1", "c2"])
LINEAR = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 8, 16]), SYMBOLS), min_size=1, max_size=3
).map(lambda pairs: " + ".join(f"{n}*{s}" for n, s in pairs))
DIVISORS = st.sampled_from([2, 4, 6, 8, 16])
EXPRESSIONS = st.recursive(
    LINEAR,
    lambda inner: st.one_of(
        st.tuples(inner, DIVISORS).map(lambda p: f"floor(({p[0]})/{p[1]})"),
        st.tuples(inner, DIVISORS).map(lambda p: f"Mod({p[0]}, {p[1]})"),
        st.tuples(inner, inner, st.integers(0, 5)).map(lambda p: f"{p[0]} + 2*({p[1]}) + {p[2]}"),
    ),
    max_leaves=4,
)
EXTENTS = st.fixed_dictionaries({s: st.sampled_from([1, 2, 3, 4, 8]) for s in ("c0", "c1", "c2")})


@settings(deadline=None)
@given(EXPRESSIONS, EXTENTS)
def test_forms_have_the_values_of_their_expressions(text, extents):
    expression = sympy.sympify(text)
    try:
        form = AffineReader(extents).read(expression)
    except NotAffine:
        assume(False)
    reader, whole = AffineReader(extents), collapsed(form)
    for point in points(extents):
        expected = value(text, point)
        assert form_value(form, point) == expected
        assert form_value(whole, point) == expected
        assert expected <= reader.largest(form)


@settings(deadline=None)
@given(EXTENTS, st.permutations(["c0", "c1", "c2"]), st.data())
def test_divided_walks_are_joined(extents, order, data):
    """A row of elements numbered by the symbols, cut into device dims in any way, has pitches."""
    walk, step = [], 1
    for symbol in order:
        walk.append(f"{step}*{symbol}")
        step *= extents[symbol]
    row = " + ".join(walk)
    cuts = data.draw(st.lists(st.sampled_from([2, 4, 3, 8]), max_size=2))
    coordinates, rest, size = [], row, step
    for cut in cuts:
        coordinates.insert(0, f"Mod({rest}, {cut})")
        rest, size = f"floor(({rest})/{cut})", -(-size // cut)
    spec = op("neg", {s: (n, 1) for s, n in extents.items()}, [])
    tensor = arg(0, [size, *reversed(cuts), 64], [rest, *coordinates, "0"])
    found = arg_view(spec, tensor)
    pitches = [d[0].pitch_bytes if d else 0 for d in found.view.dims]
    for point in points(extents):
        expected = 128 * value(row, point)
        assert sum(p * c for p, c in zip(pitches, point.values(), strict=True)) == expected


DEVICE = [4, 6, 3, 64]
LANED = st.tuples(
    st.sampled_from(
        ["c0", "c1", "2*c1", "c0 + 2*c1", "c0 + 1", "floor(c2/64)", "floor(c2/64) + 1"]
    ),
    st.sampled_from(["c1", "c1 + 2", "3*c1", "2*c1", "2*c1 + c0", "floor(c2/64)", "0", "4"]),
    st.sampled_from(["c0", "0", "floor(c2/64)", "floor((c2 + 64)/64)", "1"]),
    st.sampled_from(["Mod(c2, 64)", "c2", "0", "Mod(c2 + 64, 64)", "c1"]),
)


@settings(deadline=None)
@given(LANED, st.sampled_from([2, 3]), st.sampled_from([20, 64, 96]))
def test_views_have_the_addresses_of_their_coordinates(texts, first, last):
    extents = {"c0": first, "c1": 2, "c2": last}
    spec = op("neg", {s: (n, 1) for s, n in extents.items()}, [])
    tensor = arg(0, DEVICE, texts)
    spec.args.append(tensor)
    try:
        view = arg_view(spec, tensor).view
    except UnsupportedError:
        assume(False)
    texts = [str(e) for e in tensor.device_coordinates]
    for point in points(extents):
        *outer, lane = [value(e, point) for e in texts]
        row = 0
        for size, coordinate in zip(DEVICE, outer, strict=False):
            row = row * size + coordinate
        assert address(view, point) == row * 128 + lane * 2


def address(view, point):
    total = view.offset_bytes
    for dim, step in zip(view.dims, point.values(), strict=True):
        for factor in reversed(dim):
            step, digit = divmod(step, factor.extent)
            if factor.lane:
                total += digit // 64 * factor.pitch_bytes + digit % 64 * 2
            else:
                total += digit * factor.pitch_bytes
    return total


DIGITS = st.sampled_from(
    """
    0
    c0
    Mod(c0, 2)
    Mod(c0, 8)
    2*Mod(c0, 8)
    floor(c0/2)
    floor(c0/8)
    floor(c0/16)
    Mod(floor(c0/2), 4)
    Mod(floor(c0/4), 4)
    floor(Mod(c0, 8)/2)
    """.strip().splitlines()
)
STICKS = st.sampled_from(
    """
    0
    floor(c0/64)
    floor(c0/128)
    Mod(floor(c0/64), 2)
    floor(Mod(c0, 256)/64)
    """.strip().splitlines()
)
COUNTS = st.sampled_from([1, 2, 3])


@settings(deadline=None)
@given(st.tuples(DIGITS, DIGITS, DIGITS), st.sampled_from([4, 8, 16, 24, 32]), COUNTS)
def test_digits_have_the_addresses_of_their_coordinates(texts, extent, count):
    check_digits((*texts, "0"), [64, 64, 64, 64], extent, count)


@settings(deadline=None)
@given(st.tuples(STICKS, STICKS), st.sampled_from([64, 96, 128, 256]), COUNTS)
def test_sticks_have_the_addresses_of_their_coordinates(texts, extent, count):
    check_digits((*texts, "Mod(c0, 64)"), [64, 64, 64], extent, count)


def check_digits(texts, size, extent, count):
    """Over ``count`` tiles, in a loop."""
    spec = op("neg", {"c0": (extent, 1)}, [arg(0, size, texts)], tiled=["c0"])
    try:
        found = arg_view(spec, spec.args[0], (("i_0", count),))
    except UnsupportedError:
        assume(False)
    texts = [str(e) for e in spec.args[0].device_coordinates]
    for tile, step in itertools.product(range(count), range(extent)):
        *outer, lane = [value(e, {"c0": tile * extent + step}) for e in texts]
        row = functools.reduce(lambda total, c: total * 64 + c, outer, 0)
        moved = tile * found.loop_strides.get("i_0", 0)
        assert address(found.view, {"c0": step}) + moved == row * 128 + lane * 2


@pytest.mark.parametrize(
    ("coordinates", "message"),
    [
        (("c0*c1", "0", "c2"), "c0\\*c1"),
        (("c0", "0", "Mod(c2 + 1, 64)"), "Mod\\(1\\*c2 \\+ 1, 64\\) in"),
        (("c0", "0", "Mod(c2, 32)"), "lanes"),
        (("floor(c2/32)", "0", "Mod(c2, 64)"), "no pitch|floor"),
        (
            ("floor(c1/2)", "Mod(c1, 3)", "c2"),
            "digits of \\[1, 2, 3\\] .*in \\[floor\\(c1/2\\), Mod\\(c1, 3\\), c2\\]",
        ),
        (("floor((c0 + c1)/2)", "0", "c2"), "floor\\(\\(1\\*c0 \\+ 1\\*c1\\)/2\\)"),
        (("c0", "c9", "c2"), "c9, no symbol"),
        (("4*c0", "0", "c2"), "along a device dim of 8"),
        (("c0", "0 - 1", "c2"), "from -1"),
        (("c0", "0", "8*c1 + c0"), "lanes"),
    ],
)
def test_what_pitches_cannot_say(coordinates, message):
    spec = op("neg", {"c0": (4, 1), "c1": (4, 1), "c2": (64, 1)}, [])
    tensor = arg(0, [8, 4, 64], coordinates)
    spec.args.append(tensor)
    with pytest.raises(UnsupportedError, match=message) as caught:
        arg_view(spec, tensor)
    assert caught.value.code == "SPY960"
    assert "neg: " in str(caught.value)
    assert "tensor 0 (argument 0)" in str(caught.value)


@pytest.mark.parametrize("device_size", [[8, 4, 32], [8, 64]])
def test_device_sizes_are_those_of_sticks(device_size):
    spec = op("neg", {"c0": (4, 1)}, [arg(0, device_size, ["c0", "0", "0"])])
    with pytest.raises(UnsupportedError, match="device size"):
        arg_view(spec, spec.args[0])


LOOPS = (("i_0", 3), ("i_1", 2))


def strides(tiled, coordinates, size, extents, loops=LOOPS, **more):
    space = {s: (n, 1) for s, n in extents.items()}
    spec = op("neg", space, [arg(0, size, coordinates, **more)], tiled=tiled)
    return dict(arg_view(spec, spec.args[0], loops).loop_strides)


def test_loops_move_tensors_by_their_layout():
    coordinates, size = ("floor(c1/64)", "c0", "Mod(c1, 64)"), [4, 24, 64]
    extents = {"c0": 8, "c1": 128}
    assert strides(["c0", "c1"], coordinates, size, extents) == {
        "i_0": 8 * 128,
        "i_1": 2 * 24 * 128,
    }
    assert strides(["c0", "0"], coordinates, size, extents) == {"i_0": 8 * 128}
    assert strides([], coordinates, size, extents) == {}
    fixed = strides(["c0", "c1"], coordinates, size, extents, per_tile_fixed=True)
    assert fixed == {}
    assert strides(["c0", "c1"], coordinates, size, extents, place={"lx": 0}) == {}


def test_tiles_of_one_stick_go_on_at_the_next():
    found = strides(["0", "c0"], ("floor(c0/64)", "0", "Mod(c0, 64)"), [2, 5, 64], {"c0": 64})
    assert found == {"i_1": 5 * 128}


def test_two_loops_over_one_symbol():
    found = strides(["c0", "c0"], ("c0", "0"), [48, 64], {"c0": 8})
    assert found == {"i_0": 16 * 128, "i_1": 8 * 128}


def test_tiles_that_cut_sticks():
    with pytest.raises(UnsupportedError, match="2 tiles of 32 elements, in steps of 64"):
        strides(["0", "c0"], ("floor(c0/64)", "Mod(c0, 64)"), [1, 64], {"c0": 32})


def test_tiles_need_the_size_of_their_buffer():
    coordinates, extents = ("c0", "0"), {"c0": 8}
    with pytest.raises(UnsupportedError, match="within") as caught:
        strides(["c0", "0"], coordinates, [8, 64], extents)
    assert caught.value.code == "SPY960"
    assert strides(["c0", "0"], coordinates, [8, 64], extents, within=[24, 64]) == {"i_0": 1024}


@pytest.mark.parametrize("tiled", [["c0"], ["c0", "c0", "c0"]])
def test_every_loop_has_its_symbol(tiled):
    with pytest.raises(UnsupportedError, match="tiled symbols in 2 loops"):
        strides(tiled, ("c0", "0"), [24, 64], {"c0": 8})


def test_unknown_symbols_tile_nothing():
    with pytest.raises(UnsupportedError, match="loop i_0 tiles unknown c7"):
        strides(["c7", "0"], ("c0", "0"), [24, 64], {"c0": 8})


def test_symbolic_extents():
    spec = op("neg", {"c0": (8, 1)}, [arg(0, [8, 64], ["c0", "0"])])
    spec.iteration_space[sympy.Symbol("c0")] = (sympy.Symbol("s7"), 1)
    with pytest.raises(UnsupportedError, match="neg: c0 of s7") as caught:
        arg_view(spec, spec.args[0])
    assert caught.value.code == "SPY964"
