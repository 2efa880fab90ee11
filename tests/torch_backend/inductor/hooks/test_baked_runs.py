"""Bundles of baked addresses: no more arguments than segments, the same bits."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, strategies as st

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.hooks.scheduling import cut_to_segments
from tests.torch_backend.inductor.compiled_code import collected, run_clean


class Dependency(msgspec.Struct, frozen=True):
    name: str


class Reads(msgspec.Struct, frozen=True):
    reads: tuple[Dependency, ...]


class Node(msgspec.Struct, frozen=True):
    number: int
    names: tuple[str, ...]

    @property
    def read_writes(self):
        return Reads(tuple(map(Dependency, self.names)))

    def get_name(self):
        return f"op{self.number}"

    def get_buffer_names(self):
        return [f"buf{self.number}"]


@st.composite
def runs(draw):
    found = []
    for k in range(draw(st.integers(1, 12))):
        known = [f"buf{j}" for j in range(k)] + [f"arg{j}" for j in range(9)]
        names = draw(st.sets(st.sampled_from(known), min_size=1, max_size=3))
        found.append(Node(k, tuple(names)))
    return found


def segments(run):
    """Count buffers read from outside, and results that are read outside or not at all."""

    def count(nodes):
        made = {f"buf{n.number}" for n in nodes}
        others = [name for n in run if n not in nodes for name in n.names]
        inside = {name for n in nodes for name in n.names}
        results = {b for b in made if b in others or b not in inside}
        return len(inside - made) + len(results)

    return count


@given(runs(), st.integers(4, 7))
def test_pieces_are_the_longest_that_fit(run, limit):
    count = segments(run)
    pieces = cut_to_segments(run, count, limit)
    assert [node for piece in pieces for node in piece] == run
    start = 0
    for piece in pieces:
        rest = run[start:]
        fitting = [k for k in range(1, len(rest) + 1) if count(rest[:k]) <= limit]
        assert len(piece) == max(fitting)
        start += len(piece)


def test_a_node_with_too_many_tensors_is_refused():
    run = [Node(0, tuple(f"arg{k}" for k in range(4)))]
    with pytest.raises(UnsupportedError, match="op0") as caught:
        cut_to_segments(run, segments(run), 4)
    assert caught.value.code == "SPY967"
    assert "at most 4" in str(caught.value)


def total(*tensors):
    found = tensors[0]
    for tensor in tensors[1:]:
        found = found * 0.5 + tensor
    return found


def call(function, given, symbolic):
    torch._dynamo.reset()
    options = {"spyre.bundle_symbolic_args": symbolic}
    with collected() as kernels:
        found = torch.compile(function, options=options, fullgraph=True)(*given)
    return found.cpu(), kernels


def test_a_sum_of_many_tensors_is_several_baked_bundles(tmp_path):
    torch.manual_seed(0)
    given = [torch.randn(64, 128).half().to("spyre") for _ in range(12)]
    (whole, one), (cut, several) = call(total, given, True), call(total, given, False)
    assert torch.equal(whole, cut)
    assert (len(one), len(several)) == (1, 3)
    for number, kernel in enumerate(several):
        assert kernel.bundle.module.function.parameters == ()
        run_clean(kernel, tmp_path / str(number))


def test_a_loop_is_not_cut():
    torch.manual_seed(0)
    torch.spyre.declare_tensor_dim("rows", 64)
    given = [torch.randn(64, 128).half().to("spyre") for _ in range(8)]
    torch.spyre.name_tensor_dims(given[0], ["rows", None])

    def tiled(*tensors):
        with torch.spyre.spyre_hint(slices={"rows": 2}):
            return total(*tensors)

    assert torch.equal(call(tiled, given, True)[0], call(total, given, True)[0])
    with pytest.raises(Exception, match="SPY967"):
        call(tiled, given, False)
