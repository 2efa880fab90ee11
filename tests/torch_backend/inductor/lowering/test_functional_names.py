"""Functional overloads that are found by name are those whose schemas take the same arguments."""

from __future__ import annotations

import pytest

from spyre.torch_backend.compat import operator, schema_of
from spyre.torch_backend.eager.registry import FUNCTIONAL_VARIANTS, eager_kernels
from spyre.torch_backend.inductor.lowering.decompositions import functional_name

FACTORY_OPTIONS = ("dtype", "layout", "device", "pin_memory")
"""Arguments of operations that make tensors, which their out variants lack."""


def written(op):
    arguments = schema_of(op).arguments
    return [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]


def kinds(arguments):
    return [(a.name, str(a.type)) for a in arguments if a.name not in FACTORY_OPTIONS]


def by_schema(op):
    """Return the overload with the arguments of ``op`` except those that it writes."""
    outs = written(op)
    if not outs:
        return op
    if any(not argument.kwarg_only for argument in outs):
        return None  # in place
    wanted = kinds([a for a in schema_of(op).arguments if a not in outs])
    overloads = [getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads()]
    (found,) = (o for o in overloads if not written(o) and kinds(schema_of(o).arguments) == wanted)
    return found


@pytest.mark.parametrize("name", [n for n in eager_kernels() if n not in FUNCTIONAL_VARIANTS])
def test_names_follow_schemas(name):
    found, expected = functional_name(name), by_schema(operator(name))
    # by name: threads that ask torch for an overload first may make an object each
    assert (str(operator(found)) if found else None) == (str(expected) if expected else None)
