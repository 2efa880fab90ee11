"""Specs as Python source: the document's example to the letter, and back again for any."""

from __future__ import annotations

import sympy
from hypothesis import given, strategies as st

from spyre.dtypes import FORMATS
from spyre.torch_backend.inductor.bundles import op_spec_form
from spyre.torch_backend.inductor.bundles.kernel_op import plain_expression
from spyre.torch_backend.inductor.bundles.op_spec_form import (
    LoopSpec,
    OpSpec,
    TensorArg,
    expression_text,
    spec_text,
)
from tests.torch_backend.inductor.bundles.spec_cases import (
    DATA_FORMATS,
    arg,
    op,
    tiled_example,
)

NAMES = {"sympify": sympy.sympify, "DataFormats": DATA_FORMATS}
NAMES |= {n: getattr(op_spec_form, n) for n in dir(op_spec_form)}


def read(text):
    return eval(text, dict(NAMES))


def tensor(is_input, index, size, place, within=""):
    return f"""TensorArg(
                            is_input={is_input}, arg_index={index},
                            device_dtype=DataFormats.SEN169_FP16,
                            device_size={size},
                            device_coordinates=[
                                sympify('floor(c1/64)'),
                                sympify('c0'),
                                sympify('Mod(c1, 64)'),
                            ],
                            allocation={place},{within}
                        ),"""


def operation(name, *tensors):
    args = "\n                        ".join(tensors)
    return f"""OpSpec(
                    op='{name}',
                    is_reduction=False,
                    iteration_space={{
                        sympify('c0'): (sympify('512'), 32),
                        sympify('c1'): (sympify('1024'), 1),
                    }},
                    op_info={{}},
                    tiled_symbols=[sympify('c0'), sympify('c1')],
                    args=[
                        {args}
                    ],
                ),"""


def golden():
    whole, tile = "[64, 1024, 64]", "[16, 512, 64]"
    within = f"\n                            within={whole},"
    add = operation(
        "add",
        tensor(True, 0, whole, "{'hbm': 0}"),
        tensor(True, 1, whole, "{'hbm': 0}"),
        tensor(False, -1, tile, "{'lx': 0}"),
    )
    mul = operation(
        "mul",
        tensor(True, -1, tile, "{'lx': 0}"),
        tensor(True, 2, whole, "{'hbm': 0}"),
        tensor(False, 3, tile, "{'hbm': 0}", within),
    )
    return f"""[
    LoopSpec(
        count=sympify('2'),
        body=[
            LoopSpec(
                count=sympify('4'),
                body=[
                {add}
                {mul}
                ],
            ),
        ],
    ),
]"""


def unindented(text):
    return [line.strip() for line in text.splitlines()]


def test_the_documents_example():
    found = spec_text(tiled_example())
    assert unindented(found) == unindented(golden())
    assert "\n            LoopSpec(\n                count=sympify('4'),\n" in found
    assert read(found) == tiled_example()


def test_keywords_with_defaults_are_left_out():
    found = spec_text([op("neg", {"c0": (64, 1)}, [arg(0, [1, 64], ["0", "c0"])])])
    assert "per_tile_fixed" not in found
    assert "within" not in found
    assert "tiled_symbols" not in found


def test_symbols_lose_what_inductor_assumes_of_them():
    symbol = sympy.Symbol("c0", integer=True, nonnegative=True)
    assert plain_expression(symbol) == sympy.Symbol("c0")
    assert expression_text(sympy.floor(symbol / 64)) == "sympify('floor(c0/64)')"


def test_divisions_of_inductor_become_those_of_sympy():
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    symbol = sympy.Symbol("c0", integer=True, nonnegative=True)
    assert expression_text(FloorDiv(symbol, 64)) == "sympify('floor(c0/64)')"
    found = expression_text(ModularIndexing(symbol, 4, 16))
    assert read(found) == sympy.sympify("Mod(floor(c0/4), 16)")


SYMBOLS = st.sampled_from([sympy.Symbol(f"c{k}") for k in range(4)])
SIZES = st.lists(st.integers(1, 4096), min_size=1, max_size=4)
EXPRESSIONS = st.one_of(
    SYMBOLS,
    st.integers(0, 99).map(sympy.Integer),
    st.tuples(SYMBOLS, st.sampled_from([8, 64])).map(lambda p: sympy.floor(p[0] / p[1])),
    st.tuples(SYMBOLS, st.sampled_from([8, 64])).map(lambda p: sympy.Mod(*p)),
    st.tuples(SYMBOLS, SYMBOLS, st.integers(2, 9)).map(lambda p: p[0] + p[1] * p[2] + 3),
)
TENSORS = st.builds(
    TensorArg,
    is_input=st.booleans(),
    arg_index=st.integers(-1, 9),
    device_dtype=st.sampled_from(sorted(FORMATS)),
    device_size=SIZES,
    device_coordinates=st.lists(EXPRESSIONS, max_size=4),
    allocation=st.dictionaries(st.sampled_from(["hbm", "lx", "pool"]), st.integers(0, 1 << 40)),
    per_tile_fixed=st.booleans(),
    within=SIZES,
)
OPERATIONS = st.builds(
    OpSpec,
    op=st.sampled_from(["add", "sum", "it's"]),
    is_reduction=st.booleans(),
    iteration_space=st.dictionaries(
        SYMBOLS, st.tuples(st.integers(1, 999).map(sympy.Integer), st.integers(1, 32))
    ),
    args=st.lists(TENSORS, max_size=3),
    op_info=st.dictionaries(
        st.sampled_from(["constants", "part"]), st.dictionaries(st.text(max_size=3), st.integers())
    ),
    tiled_symbols=st.lists(st.one_of(SYMBOLS, st.just(sympy.Integer(0))), max_size=2),
)
COUNTS = st.one_of(st.integers(1, 9).map(sympy.Integer), SYMBOLS)
SPECS = st.recursive(
    OPERATIONS,
    lambda inner: st.builds(LoopSpec, COUNTS, st.lists(inner, min_size=1, max_size=3)),
    max_leaves=4,
)


@given(st.lists(SPECS, max_size=3))
def test_the_text_makes_the_specs_again(specs):
    text = spec_text(specs)
    again = read(text)
    assert spec_text(again) == text
    assert normal(again) == normal(specs)


def normal(specs):
    """Specs whose left out sequences are equal to empty ones."""
    found = []
    for spec in specs:
        if isinstance(spec, LoopSpec):
            found.append((spec.count, normal(spec.body)))
        elif isinstance(spec, OpSpec):
            fields = (spec.op, spec.is_reduction, list(spec.iteration_space.items()), spec.op_info)
            tensors = [(*(getattr(a, f) for f in FIELDS), list(a.within)) for a in spec.args]
            found.append((*fields, list(spec.tiled_symbols), tensors))
        else:
            found.append(spec)
    return found


FIELDS = (
    "is_input",
    "arg_index",
    "device_dtype",
    "device_size",
    "device_coordinates",
    "allocation",
    "per_tile_fixed",
)
