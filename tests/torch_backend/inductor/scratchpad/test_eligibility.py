"""Buffers that may be in LX, the reason for every refusal, and in-place results."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spyre.torch_backend.inductor.scratchpad import accesses_of, in_place_parents, refusals
from spyre.torch_backend.program.op_spec import OpKind
from tests.torch_backend.inductor.scratchpad.kernels import (
    COLUMNS,
    FULL,
    LANE,
    ROWS,
    C,
    chain,
    loop,
    named,
    pointwise,
    reduction,
    softmax,
)


def why(specs, names, arguments=()):
    return refusals(accesses_of(named(specs, names, arguments))[0])


def parents(specs, names, among=None):
    accesses, loops = accesses_of(named(specs, names))
    among = eligible(refusals(accesses)) if among is None else among
    return in_place_parents({name: accesses[name] for name in among}, loops)


def eligible(found):
    return [name for name, text in found.items() if text is None]


def test_softmax():
    found = why(*softmax(splits=(32, 1)))
    assert eligible(found) == ["max", "sub", "exp", "sum"]
    assert found["x"] == "max reads it before it is made"
    assert found["y"] == "is used by one operation only"


@pytest.mark.parametrize("op", ["exp", "silu", "identity", "tanh"])
def test_results_of_every_operation_may_be_in_lx(op):
    assert why(*chain(op, "exp"))["b0"] is None


def test_arguments_stay_in_hbm():
    specs, names = chain("exp", "exp")
    assert why(specs, names)["b0"] is None
    assert why(specs, names, ["b0"])["b0"] == "is an argument of the kernel"


def test_a_k_split_is_refused():
    specs = [
        reduction("sum", (512, 1024), [FULL, LANE], (4, 8)),
        pointwise("exp", (512, 1024), [LANE, LANE], (4, 8)),
    ]
    found = why(specs, [("x", "s"), ("s", "y")])
    assert found["s"] == "cores share the terms that sum sums into it"


def test_a_restickify_works_on_hbm():
    specs, names = chain("exp", "ReStickifyOpHBM", "exp")
    found = why(specs, names)
    assert found["b0"] == found["b1"] == "ReStickifyOpHBM works on HBM"


def test_other_divisions_are_refused():
    specs, names = chain("exp", "neg")
    rows = pointwise("exp", (512, 1024), [FULL, FULL], (32, 1))
    columns = pointwise("neg", (512, 1024), [FULL, FULL], (2, 16))
    half = pointwise("neg", (512, 1024), [FULL, FULL], (16, 1))
    assert why([rows, rows], names)["b0"] is None
    assert why([rows, columns], names)["b0"] == (
        "per core exp makes [16×1, 16×32/1] on 32 cores, neg uses [256×32/1] on 32 cores"
    )
    assert "on 16 cores" in why([rows, half], names)["b0"]
    assert why(specs, names)["b0"] is None


def test_other_core_numbers_are_refused():
    """The same slices, but the matmul numbers the cores along its split K first."""
    a, b, c = (C[0], C[2]), (C[2], C[1]), (C[0], C[1])
    product = reduction("batchmatmul", (512, 64, 1024), [a, b, c], (4, 1, 8))
    made = pointwise("exp", (512, 1024), [FULL, FULL], (4, 8))
    found = why([made, product], [("x", "l"), ("l", "r", "y")])
    assert found["l"] == (
        "per core exp makes [2×8/4, 128×4/1] on 32 cores, "
        "batchmatmul uses [2×8/1, 128×4/8] on 32 cores"
    )
    rows = pointwise("exp", (512, 1024), [FULL, FULL], (32, 1))
    whole = reduction("batchmatmul", (512, 64, 1024), [a, b, c], (32, 1, 1))
    assert why([rows, whole], [("x", "l"), ("l", "r", "y")])["l"] is None


def test_operations_elsewhere_are_refused():
    specs, names = chain("exp", "exp")
    specs[1] = replace(specs[1], name="sort", kind=OpKind.TOPK)
    assert why(specs, names)["b0"] == "sort works on HBM"


def test_a_value_all_cores_need_is_not_in_their_lx():
    """Columns are divided where the row sums are used: other cores than made them read them."""
    specs = [
        reduction("sum", (512, 1024), [FULL, LANE], (4, 1)),
        pointwise("sub", (512, 1024), [FULL, LANE, FULL], (4, 8)),
    ]
    found = why(specs, [("x", "s"), ("x", "s", "y")])
    assert "on 4 cores, sub uses [128×4/1] on 32 cores" in found["s"]


def test_other_formats_are_refused():
    specs, names = chain("exp", "neg")
    word = replace(specs[1].tensors[0], format="SENINT16")
    specs[1] = replace(specs[1], tensors=(word, specs[1].output))
    assert why(specs, names)["b0"] == "exp makes it as SEN169_FP16, neg reads another format"


def test_parts_of_a_buffer_are_refused():
    specs, names = chain("exp", "neg")
    plane = 600 * 128
    part = replace(specs[1].tensors[0], pitches=(128, plane), size_bytes=16 * plane)
    specs[1] = replace(specs[1], tensors=(part, specs[1].output))
    assert why(specs, names)["b0"] == "in neg it is touched in 512 of 600 steps along c0"


def test_what_a_loop_moves_is_refused():
    body = [pointwise(op, (64, 64), [FULL, FULL], tiled=(ROWS,)) for op in ("exp", "neg")]
    fixed = [pointwise(op, (64, 64), [FULL, FULL], tiled=(ROWS,), fixed=True) for op in "ab"]
    names = [("x", "b0"), ("b0", "b1")]
    assert why(body, names)["b0"] is None
    moved = why([loop(2, *body)], names)["b0"]
    assert moved == "a loop moves what exp uses of it"
    assert why([loop(2, *fixed)], names)["b0"] is None


# --- in place -------------------------------------------------------------------------------------


def test_softmax_is_made_in_place():
    assert parents(*softmax()) == {"exp": "sub"}


def test_an_operand_used_later_keeps_its_place():
    specs, names = chain("exp", "exp", "exp")
    assert parents(specs, names) == {"b1": "b0"}
    later = [*specs, pointwise("add", (512, 1024), [FULL, FULL, FULL])]
    assert parents(later, [*names, ("b0", "b2", "y")]) == {"b2": "b1"}


def test_an_operand_is_given_once_and_the_first_is_taken():
    specs, _ = chain("exp", "exp")
    two = [*specs, pointwise("add", (512, 1024), [FULL] * 3), *chain("neg")[0]]
    assert parents(two, [("x", "a"), ("x", "b"), ("a", "b", "c"), ("c", "y")]) == {"c": "a"}


def test_a_transposed_operand_keeps_its_place():
    turned = pointwise("neg", (64, 64), [(COLUMNS, ROWS), FULL])
    specs = [pointwise("exp", (64, 64), [FULL, FULL]), turned, chain("exp")[0][0]]
    specs[2] = pointwise("exp", (64, 64), [FULL, FULL])
    names = [("x", "a"), ("a", "b"), ("b", "y")]
    assert eligible(why(specs, names)) == ["a", "b"]
    assert parents(specs, names) == {}


def test_an_operand_read_twice_in_two_ways_keeps_its_place():
    twice = pointwise("add", (64, 64), [FULL, (COLUMNS, ROWS), FULL])
    plain = [pointwise("exp", (64, 64), [FULL, FULL]) for _ in range(2)]
    specs = [plain[0], twice, plain[1]]
    assert parents(specs, [("x", "a"), ("a", "a", "b"), ("b", "y")]) == {}
    same = [plain[0], pointwise("add", (64, 64), [FULL] * 3), plain[1]]
    assert parents(same, [("x", "a"), ("a", "a", "b"), ("b", "y")]) == {"b": "a"}


def test_reductions_and_smaller_operands_are_not_in_place():
    rows = [
        reduction("sum", (512, 1024), [FULL, LANE]),
        pointwise("sub", (512, 1024), [FULL, LANE, FULL]),
        reduction("sum", (512, 1024), [FULL, LANE]),
        pointwise("exp", (512, 1024), [LANE, LANE]),
    ]
    names = [("x", "s"), ("x", "s", "d"), ("d", "t"), ("t", "y")]
    assert eligible(why(rows, names)) == ["s", "d", "t"]
    assert parents(rows, names) == {}


def test_what_a_loop_reads_again_keeps_its_place():
    specs, names = chain("exp", "neg", "exp", sizes=(64, 64))
    assert parents(specs, names) == {"b1": "b0"}
    looped = [specs[0], loop(2, *specs[1:])]
    assert parents(looped, names) == {}
    assert parents([loop(2, *specs)], names) == {"b1": "b0"}


def test_what_does_not_lie_in_lx_takes_no_part():
    specs, names = chain("tanh", "exp", "exp")
    assert parents(specs, names, ["b0", "b1"]) == {"b1": "b0"}
    assert parents(specs, names, ["b1"]) == {}
