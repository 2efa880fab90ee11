"""What an `OpSpec` has the cores do: its kind, opFuncName and constants, its tensors apart."""

from __future__ import annotations

from spyre.errors import UnsupportedError
from spyre.hw.ops import Family, find_op
from spyre.torch_backend.inductor.gather_views import INDIRECT
from spyre.torch_backend.inductor.op_spec import OpSpec
from spyre.torch_backend.inductor.spec_views import inexpressible
from spyre.torch_backend.program.op_spec import Instruction, OpKind

_POINTWISE = (Family.ELEMENTWISE, Family.COPY, Family.CONVERT, Family.RECODE)
_KINDS = dict.fromkeys(_POINTWISE, OpKind.POINTWISE) | {
    Family.REDUCTION: OpKind.REDUCTION,
    Family.MATMUL: OpKind.MATMUL,
    Family.RESTICKIFY: OpKind.RESTICKIFY,
    Family.TOPK: OpKind.TOPK,
}
_INPUTS = {OpKind.MATMUL: 2, OpKind.RESTICKIFY: 1, OpKind.REDUCTION: 1}
_INPUTS |= {OpKind.TOPK: 1, OpKind.GATHER: 2}
OP_INFO = ("constants", "mask_from", "lane_multiple", "part", "k_fast", INDIRECT)
"""Keys of ``op_info``: constant name → bits as float32; fields of the eager `OpSpec`; False where
cores that add up one tile of a matmul have no neighbouring numbers; how a gather reads its table.
"""


def instruction_of(spec: OpSpec) -> Instruction:
    """What ``spec`` does. UnsupportedError SPY962 for a name the cores do not have, SPY960 for an
    operation that is more than its tensors' coordinates.
    """
    row = find_op(spec.op)
    if row is None:
        raise unimplemented(spec.op)
    kind = _KINDS.get(row.family)
    if kind is None:
        raise inexpressible(spec, "it", f"a {row.family} operation")
    if INDIRECT in spec.op_info:
        kind = OpKind.GATHER
    _check_form(spec, kind)
    unknown = [key for key in spec.op_info if key not in OP_INFO]
    if unknown:
        raise inexpressible(spec, "it", f"op_info {unknown[0]!r}", f"known: {', '.join(OP_INFO)}")
    info = spec.op_info
    return Instruction(
        kind,
        row.name,
        dict(info.get("constants", {})),
        int(info.get("mask_from", 0)),
        int(info.get("lane_multiple", 0)),
    )


def _check_form(spec: OpSpec, kind: OpKind) -> None:
    inputs = sum(arg.is_input for arg in spec.args)
    outputs = len(spec.args) - inputs
    if inputs != _INPUTS.get(kind, inputs) or outputs != 1:
        raise inexpressible(spec, "it", f"{inputs} inputs and {outputs} outputs of {spec.op}")
    if kind in (OpKind.POINTWISE, OpKind.REDUCTION) and spec.is_reduction != (
        kind is OpKind.REDUCTION
    ):
        raise inexpressible(spec, "it", f"{spec.op} with is_reduction={spec.is_reduction}")


def unimplemented(op: str) -> UnsupportedError:
    """SPY962 about an operation of this name."""
    return UnsupportedError(
        "SPY962",
        f"there is no SDSC for {op}",
        expected="operations of the cores only",
        found=op,
        hint="outside of compiled code the operation runs on the CPU",
    )
