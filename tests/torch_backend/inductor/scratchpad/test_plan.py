"""Plans: from specs to allocations, against the document's example and a simulated memory."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre import config
from spyre.errors import LaunchError
from spyre.hw.cost import default_machine
from spyre.torch_backend.inductor.base.settings import lx_capacity_bytes
from spyre.torch_backend.inductor.bundles.kernel_op import KernelLoop, KernelOp
from spyre.torch_backend.inductor.scratchpad import plan_scratchpad, plan_timer, with_offsets
from spyre.torch_backend.program.builder import pack
from tests.examples import examples
from tests.torch_backend.inductor.scratchpad.kernels import (
    COLUMNS,
    FULL,
    ROWS,
    chain,
    loop,
    named,
    pointwise,
    softmax,
    tensor,
)

CAPACITY = 1_677_721


def document_example():
    """z = (a + b)·c over [1024, 4096], tiled 2 and 4 times: tiles of [512, 1024]."""
    full, tiled = (1024, 4096), (ROWS, COLUMNS)

    def whole():
        return tensor(2, full, FULL, strides=(512 * 128, 16 * 1024 * 128))

    def tile():
        return tensor(2, (512, 1024), FULL, fixed=True)

    def op(name, *tensors):
        return pointwise(name, (512, 1024), (), (32, 1), tiled=tiled, tensors=tensors)

    add, mul = op("add", whole(), whole(), tile()), op("mul", tile(), whole(), whole())
    return (loop(2, loop(4, add, mul)),), [("a", "b", "y"), ("y", "c", "z")]


def test_the_documents_example():
    kernel = named(*document_example(), ["a", "b", "c", "z"])
    plan = plan_scratchpad(kernel, CAPACITY)
    assert plan.placed == {"y": 0}
    (y,) = plan.buffers
    assert y.size_bytes == 512 * 1024 * 2 // 32
    assert plan.refused == dict.fromkeys("abcz", "is an argument of the kernel")
    (outer,) = with_offsets(kernel, "lx", plan.placed)
    (add, mul) = outer.body[0].body
    assert [t.memory for t in add.tensors] == ["hbm", "hbm", "lx"]
    assert [t.argument for t in mul.tensors] == [-1, 0, 0]
    assert outer.count == 2
    assert outer.body[0].count == 4
    assert kernel[0].body[0].body[0].output.memory == "hbm", "the given kernel stays"


def test_plans_can_be_sent_to_other_processes():
    plan = plan_scratchpad(named(*softmax()), CAPACITY)
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_softmax_on_one_core():
    """The reference's softmax vector, from specs: 512×1024, one core."""
    plan = plan_scratchpad(named(*softmax()), CAPACITY)
    assert plan.offsets == {"max": 0, "sub": 65536, "exp": 65536, "sum": 0}
    assert [b.size_bytes for b in plan.buffers] == [65536, 1 << 20, 1 << 20, 65536]
    assert plan.buffers[2].in_place_of == "sub"


def test_the_default_capacity():
    assert lx_capacity_bytes() == int((2 << 20) * (1 - 0.2)) == CAPACITY


@pytest.mark.parametrize(("kept", "capacity"), [("0", 2 << 20), ("0.5", 1 << 20), ("1", 0)])
def test_the_capacity_is_an_option(monkeypatch, kept, capacity):
    monkeypatch.setenv(config.LX_FRACTION_KEPT.name, kept)
    assert lx_capacity_bytes() == capacity
    plan = plan_scratchpad(named(*softmax()), lx_capacity_bytes())
    assert (plan.offsets["exp"] is None) == (capacity < 1 << 20)


@pytest.mark.parametrize("text", ["a fifth", "1.5", "-0.1", "nan"])
def test_the_capacity_must_be_a_fraction(monkeypatch, text):
    monkeypatch.setenv("DXP_LX_FRAC_AVAIL", text)
    with pytest.raises(LaunchError, match="SPY985") as caught:
        lx_capacity_bytes()
    assert caught.value.finding.found == text


# --- a memory that shows what is overwritten ------------------------------------------------------


@st.composite
def kernels(draw):
    """Random kernels of pointwise operations over one shape, with up to two loops."""
    made, names = ["x"], []
    for k in range(draw(st.integers(1, 9))):
        operands = draw(st.lists(st.sampled_from(made), min_size=1, max_size=2))
        target = draw(st.sampled_from([f"b{k}", f"b{k}", *made[1:]]))
        made = list(dict.fromkeys([*made, target]))
        names.append((*operands, target))
    specs = [pointwise("add", (64, 64), [FULL] * len(n)) for n in names]
    for _ in range(draw(st.integers(0, 2))):
        begin = draw(st.integers(0, len(specs) - 1))
        stop = draw(st.integers(begin + 1, len(specs)))
        count = draw(st.integers(1, 3))
        specs[begin:stop] = [loop(count, *specs[begin:stop])]
    return specs, names


def run(specs, names, places):
    """Values every operation computes, where buffers with a place share one memory.

    A value is a number made from the operation's operands and nothing else.
    """
    memory = np.zeros(1 << 12, dtype=object)
    elsewhere: dict[str, int] = {}
    seen = []
    flat = iter(names)

    def load(name):
        at = places.get(name)
        return elsewhere.get(name, 1) if at is None else memory[at // 128]

    def walk(body, rest):
        for spec in body:
            if isinstance(spec, KernelLoop):
                inner = [next(rest) for _ in range(size(spec))]
                for _ in range(int(spec.count)):
                    walk(spec.body, iter(inner))
                continue
            *operands, target = next(rest)
            value = hash((len(seen), *(load(name) for name in operands)))
            seen.append(value)
            if places.get(target) is None:
                elsewhere[target] = value
            else:
                at = places[target] // 128
                memory[at : at + 64] = value

    walk(specs, flat)
    return seen


def size(spec):
    return 1 if isinstance(spec, KernelOp) else sum(size(s) for s in spec.body)


@given(kernels(), st.sampled_from([64, 128, 192, 512]))
def test_kernels_compute_the_same_in_lx(kernel, sticks):
    specs, names = kernel
    plan = plan_scratchpad(named(specs, names), sticks * 128)
    assert run(specs, names, plan.offsets) == run(specs, names, {})
    assert set(plan.offsets) | set(plan.refused) == {n for named in names for n in named}


def test_the_simulated_memory_sees_overwritten_values():
    specs, names = chain("exp", "exp", "add", sizes=(64, 64))
    names = [("x", "a"), ("x", "b"), ("a", "b")]
    assert run(specs, names, {"a": 0, "b": 8192}) == run(specs, names, {})
    assert run(specs, [*names[:2], ("a", "y")], {"a": 0, "b": 128}) == run(
        specs, [*names[:2], ("a", "y")], {}
    )
    assert run(specs, [*names[:2], ("a", "y")], {"a": 128, "b": 0}) != run(
        specs, [*names[:2], ("a", "y")], {}
    )


def test_divided_results_are_placed():
    plan = plan_scratchpad(named(*softmax(splits=(32, 1))), CAPACITY)
    assert set(plan.placed) == {"max", "sub", "exp", "sum"}


# --- where not all buffers fit --------------------------------------------------------------------


def two_buffers(reads: int):
    """``long`` is made first, and read once at the end; ``short`` is read ``reads`` times."""
    binary = [FULL, FULL, FULL]
    made = [pointwise("exp", (512, 1024), [FULL, FULL]) for _ in range(2)]
    made += [pointwise("add", (512, 1024), binary) for _ in range(reads + 1)]
    names = [("x", "long"), ("x", "short")]
    names += [("short", "x", f"y{k}") for k in range(reads)] + [("long", "x", "z")]
    arguments = ["x", "z", *(f"y{k}" for k in range(reads))]
    return named(made, names, arguments)


def test_the_plan_of_least_modelled_time_is_taken():
    """LX has room for one; the first in the order of use saves less."""
    plan = plan_scratchpad(two_buffers(3), 1 << 20)
    assert plan.placed == {"short": 0}
    assert plan.offsets["long"] is None
    best, first = re.fullmatch(
        r"4 plans compared: operations take ([\d.]+) us, and ([\d.]+) in the order of first use",
        plan.compared,
    ).groups()
    assert float(best) < float(first)


def test_equal_plans_keep_the_order_of_first_use():
    plan = plan_scratchpad(two_buffers(1), 1 << 20)
    assert plan.placed == {"long": 0}
    assert plan.compared.startswith("2 plans compared: ")
    assert "first use" not in plan.compared


def test_nothing_is_compared_where_all_fit():
    plan = plan_scratchpad(two_buffers(3), 2 << 20)
    assert set(plan.placed) == {"long", "short"}
    assert plan.compared == ""


@examples(30)
@given(kernels(), st.integers(1, 40))
def test_plans_are_no_slower_than_in_the_order_of_first_use(made, sticks):
    specs, names = made
    kernel = named(specs, names, ["x"])
    plan = plan_scratchpad(kernel, 64 * 128 * sticks // 10)
    plan_ns = plan_timer(kernel, default_machine())
    first = pack(plan.buffers, plan.capacity_bytes)
    assert plan_ns(plan.offsets) <= plan_ns(first)
    assert list(plan.offsets) == [b.name for b in plan.buffers]
    assert all(
        offset is None or offset + b.size_bytes <= plan.capacity_bytes
        for b, offset in zip(plan.buffers, plan.offsets.values(), strict=True)
    )
