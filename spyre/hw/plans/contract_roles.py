"""Roles, sticks and formats of packed matmuls and convolutions.

A window dim is a reduction dim that the first input holds through its spatial dim. The table of
sticks is that of the operations reference §4.
"""

from __future__ import annotations

from dataclasses import dataclass

from spyre.errors import JsonLocation, SdscError
from spyre.hw.access import Access
from spyre.hw.plans.context import PlanContext
from spyre.hw.plans.window_regions import window_dims

_FORMATS = {
    "dl16": ("SEN169_FP16",),
    "fp8": ("SEN143_FP8", "SEN152_FP8"),
    "int8": ("SENINT8",),
    "int4": ("SENINT4",),
}
"""Formats of A and B by the op table's kernel name; C is SEN169_FP16."""


@dataclass(frozen=True, slots=True)
class ContractRoles:
    """Dims by role: ``channel`` is the reduction dim in A's stick, ``generated`` in B's and C's.

    ``reduced``: window dims, then the channel.
    """

    channel: str
    generated: str
    reduced: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    batch: tuple[str, ...]


def find_contract_roles(context: PlanContext) -> ContractRoles:
    """Roles of all dims; raises SdscError when the structure is no contraction."""
    op = context.op
    if not all(access.tensor.stick_dims for access in context.accesses):
        raise _structure(context)
    a, b, c = (access.tensor for access in context.accesses)
    places = window_dims(context) if context.spec.windowed else ()
    members = {d: (a.holds(d) or d in places, b.holds(d), c.holds(d)) for d in op.dims}

    def those(*wanted: bool) -> tuple[str, ...]:
        return tuple(dim for dim, found in members.items() if found == wanted)

    channels = tuple(d for d in those(True, True, False) if d not in places)
    columns = those(False, True, True)
    generated = context.output.tensor.stick_dims[0]
    lost = [d for d in places if members[d] != (True, True, False)]
    unknown = [d for d, m in members.items() if sum(m) < 2 and op.extents[d] > 1]
    if len(channels) != 1 or generated not in columns or lost or unknown:
        raise _structure(context)
    rows, batch = those(True, False, True), those(True, True, True)
    return ContractRoles(channels[0], generated, (*places, *channels), rows, columns, batch)


def _structure(context: PlanContext) -> SdscError:
    conv = context.spec.windowed
    name = "convolution" if conv else "matmul"
    a, b, c = (access.tensor for access in context.accesses)
    return SdscError(
        "SPY292" if conv else "SPY284",
        f"{context.op.name}: the tensors do not have the structure of a {name}",
        context.location,
        expected="one dim in A and B only (and window dims in B), in A's stick; "
        "a dim in B and C only, in their sticks",
        found=f"A{a.dims} stick {a.stick_dims}, B{b.dims} stick {b.stick_dims}, "
        f"C{c.dims} stick {c.stick_dims}",
    )


def check_contract(context: PlanContext, roles: ContractRoles) -> None:
    """Raise for formats and sticks other than those of the operation."""
    kind = context.spec.kernel_op
    wanted = (_FORMATS[kind], _FORMATS[kind], _FORMATS["dl16"])
    for access, formats in zip(context.accesses, wanted, strict=True):
        if access.tensor.data_format not in formats:
            raise context.refuse(
                "SPY522",
                f"{access.tensor.name} has a format that is not simulated here",
                " or ".join(formats),
                access.tensor.data_format,
            )
    k, n = roles.channel, roles.generated
    shared = context.inputs[0].tensor.stick_dims[1:2] if kind == "int4" else ()
    pair = shared[0] if shared and shared[0] in roles.rows else "a row dim"
    rules = {
        "dl16": ([(k, 64)], [(n, 64)]),
        "fp8": ([(k, 128)], [(k, 2), (n, 64)]),
        "int8": ([(k, 128)], [(k, 2), (n, 64)]),
        "int4": ([(k, 16), (pair, 2), (k, 8)], [(k, 4), (n, 64)]),
    }[kind]
    for access, rule in zip(context.accesses, (*rules, [(n, 64)]), strict=True):
        check_stick(context, access, rule)


def check_stick(context: PlanContext, access: Access, rule: list[tuple[str, int]]) -> None:
    """Raise SdscError unless the stick is ``rule``: (dim, elements), innermost first."""
    tensor = access.tensor
    found = list(zip(tensor.stick_dims, tensor.stick_sizes, strict=True))
    if found != rule:
        raise SdscError(
            "SPY293",
            f"{context.op.name}: the stick of {tensor.name} is not the one of this operation",
            JsonLocation(context.op.file, tensor.json_path),
            expected=_shown(rule),
            found=_shown(found),
        )


def _shown(stick: list[tuple[str, int]]) -> str:
    return ", ".join(f"{size} of {dim}" for dim, size in stick) + " (innermost first)"
