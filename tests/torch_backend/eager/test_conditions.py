"""Conditions of eager kernels: names, and which arguments they hold for."""

import pytest
import torch

from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    NUMBER,
    Conditions,
    bind,
    signature_of,
)
from spyre.torch_backend.eager.registry import kernels_by_name

ROWS = [
    (name, conditions)
    for name, kernels in kernels_by_name().items()
    for _, conditions in kernels
    if conditions is not None
]


def _names(conditions: Conditions) -> set[str]:
    groups = (
        *(conditions.same_dtype, conditions.same_device),
        *(conditions.nonempty, conditions.empty),
        *(conditions.dtypes, conditions.ranks, conditions.values),
    )
    return {name for group in groups for name in group}


def test_every_name_is_an_argument_of_an_operator_with_these_conditions():
    known: dict[int, set[str]] = {}
    for name, conditions in ROWS:
        arguments = known.setdefault(id(conditions), {"inputs", "results"})
        arguments |= set(signature_of(name)[2])
    for name, conditions in ROWS:
        assert _names(conditions) <= known[id(conditions)], name


def test_every_operator_ends_with_its_only_row_without_conditions():
    for name, kernels in kernels_by_name().items():
        assert all(conditions is not None for _, conditions in kernels[:-1]), name


def _holds(conditions: Conditions, *args: object, **named: object) -> bool:
    return conditions.hold(bind(signature_of("addmv.out"), args, {"out": None, **named}))


FLOAT, INTEGER, EMPTY = torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(0)


@pytest.mark.parametrize(
    ("conditions", "holds", "fails"),
    [
        (Conditions(dtypes={"mat": FLOATS}), (INTEGER, FLOAT), (FLOAT, INTEGER)),
        (Conditions(dtypes={"inputs": FLOATS}), (FLOAT, FLOAT), (FLOAT, INTEGER)),
        (Conditions(dtypes={"self": (NUMBER,)}), (torch.tensor(1.0),), (FLOAT,)),
        (Conditions(same_dtype=("self", "mat")), (INTEGER, INTEGER), (FLOAT, INTEGER)),
        (Conditions(nonempty=("inputs",)), (FLOAT, FLOAT), (FLOAT, EMPTY)),
        (Conditions(empty=("self",)), (EMPTY, FLOAT), (FLOAT, EMPTY)),
        (Conditions(ranks={"self": (1, 2)}), (FLOAT,), (torch.tensor(1.0),)),
        (Conditions(check=lambda args: args.mat is FLOAT), (EMPTY, FLOAT), (FLOAT, EMPTY)),
    ],
)
def test_a_condition_looks_at_the_arguments_it_names(conditions, holds, fails):
    assert _holds(conditions, *holds)
    assert not _holds(conditions, *fails)


def test_values_are_compared_with_defaults_too():
    conditions = Conditions(values={"beta": (1,)})
    assert _holds(conditions, FLOAT)
    assert not _holds(conditions, FLOAT, beta=2)
