"""Putting the result of a program where its caller says."""

from __future__ import annotations

from spyre.torch_backend.program.op_spec import OpKind, OpSpec
from spyre.torch_backend.program.operations import Operations
from spyre.torch_backend.program.value import Value


def store(
    low: Operations, value: Value, goal: Value, *, is_operand: bool = False, overlaps: bool = False
) -> None:
    """Have ``value`` written to ``goal``, which has its sizes and format.

    ``is_operand``: the goal is also an operand, element by element; ``overlaps``: in another way.
    """
    if value.lane_dim != goal.lane_dim:
        value = low.with_lane(value, goal.lane_dim)
    straight = _is_last(low, value, is_operand) or _is_joined(low, value, goal, is_operand)
    if straight and not overlaps:
        low.builder.output_into(value, goal)
    else:
        low.builder.add(OpSpec(OpKind.POINTWISE, "identity", (value,), goal))


def _is_last(low: Operations, value: Value, is_operand: bool) -> bool:
    """True if the last operation makes all of ``value``; element by element if the goal is also an
    operand.
    """
    last = low.builder.specs[-1] if low.builder.specs else None
    if last is None or value.order is None or last.output.region != value.region:
        return False
    written = sum(spec.output.region == value.region for spec in low.builder.specs)
    return written == 1 and (last.kind is OpKind.POINTWISE or not is_operand)


def _is_joined(low: Operations, value: Value, goal: Value, is_operand: bool) -> bool:
    """True if the last operations make ``value`` part by part, none of them reads it, and the
    goal can be written so.
    """
    specs = low.builder.specs
    writers = [k for k, spec in enumerate(specs) if spec.output.region == value.region]
    if is_operand or value.order is None or len(writers) < 2:
        return False
    last = specs[writers[0] :]
    if len(last) != len(writers) or any(v.region == value.region for s in last for v in s.inputs):
        return False
    return all(s.part is not None and len(goal.view.dims[s.part[0]]) == 1 for s in last)
