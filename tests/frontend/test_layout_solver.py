"""The extension's solver of scratchpad layouts, over one in Python that puts buffers in a row."""

from __future__ import annotations

import copy
import sys
from types import ModuleType, SimpleNamespace

import pytest

from spyre.frontend.layout_solver import MODULE, LayoutSolver


class InARow:
    def __init__(self, buffers, permutation, capacity, alignment, eligible):
        self.buffers, self.permutation = buffers, permutation

    def quality(self):
        return 1.5

    def swap(self, i):
        order = self.permutation
        order[i], order[i + 1] = order[i + 1], order[i]

    def rotate(self, i, j):
        self.permutation.insert(j, self.permutation.pop(i))
        return 0.0

    def copy(self):
        return InARow(self.buffers, [*self.permutation], 0, 1, None)


@pytest.fixture
def solver(monkeypatch):
    module = ModuleType(MODULE)
    module.PermutationBasedLayoutSolver = InARow
    monkeypatch.setitem(sys.modules, MODULE, module)
    return LayoutSolver([SimpleNamespace(name="a", uses=[0]) for _ in range(3)], [2, 0, 1], 1000)


def test_class_is_the_extensions(solver):
    assert (type(solver).__module__, type(solver).__name__) == (
        "torch_spyre._C",
        "NativePermutationLayoutSolver",
    )
    assert solver.quality() == 1.5


def test_order_is_live_and_read_only(solver):
    order = solver.permutation
    before = copy.copy(order)
    solver.rotate(0, 2)
    assert order == [0, 1, 2] == list(order)
    assert order == solver.permutation
    assert before == [2, 0, 1]
    assert copy.deepcopy(order) == order
    assert order != before
    with pytest.raises(TypeError):
        order[0] = 1
    with pytest.raises(IndexError):
        order[3]


def test_copies_move_alone(solver):
    clone = solver.copy()
    clone.swap(0)
    assert isinstance(clone, LayoutSolver)
    assert (solver.permutation, clone.permutation) == ([2, 0, 1], [0, 2, 1])


@pytest.mark.parametrize(
    "call",
    [
        lambda solver: solver.rotate(0, 3),
        lambda solver: solver.rotate(-1, 0),
        lambda solver: solver.resize(3, 1),
        lambda solver: solver.set_eligible(-1, True),
        lambda solver: LayoutSolver([SimpleNamespace(name="a", uses=[])], [0], 1),
        lambda solver: LayoutSolver([], [], 1, 0),
    ],
)
def test_wrong_arguments(solver, call):
    with pytest.raises(ValueError, match=r"out of range|no uses|must be positive"):
        call(solver)
