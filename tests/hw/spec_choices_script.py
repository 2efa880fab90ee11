"""One operation per reading, engine against reference; digests of the results.

Run by `test_spec_choices` in its own process, and in one whose readings differ from the defaults.
"""

from __future__ import annotations

import hashlib

from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise, reduction
from tests.hw.harness import Trial, compare, normals, output_bytes, region, small_numbers

ROWS = 8


def _at(k: int, absent: tuple[int, ...] = ()) -> HostOperand:
    return HostOperand(region(k), absent)


def _topk(name: str) -> OperationSpec:
    """The 4 largest of 13 along mb."""
    source = OperandSpec(("mb", "out", "x"), (("out", 64),), region(0), {"x": -1})
    target = OperandSpec(("x", "out", "mb"), (("out", 64),), region(1), {"mb": -1})
    return OperationSpec(name, {"mb": 13, "x": 4, "out": 128}, [source], [target])


def _token(name: str, constants: dict[str, int]) -> OperationSpec:
    return reduction(name, (ROWS, 128), (1,), _at(0), _at(1), {}, constants)


CASES: dict[str, OperationSpec] = {
    "GELU_FORM": pointwise("gelufwd", (ROWS, 128), [_at(0)], _at(1)),
    "LEAKY_SLOPE": pointwise("leakyrelufwd", (ROWS, 128), [_at(0)], _at(1)),
    "FNMS_FORM": pointwise("fnms", (ROWS, 128), [_at(0), _at(1), _at(2)], _at(3)),
    "BATCHNORM_OPERANDS": pointwise(
        "batchnormfwd", (ROWS, 128), [_at(0), _at(1, (0,)), _at(2, (0,))], _at(3)
    ),
    "VARIANCE_FLOOR": pointwise(
        "layernormscale", (ROWS, 128), [_at(0, (1,))], _at(1), {}, {"eps": 0x4400}
    ),
    "EXX2_LANES": _token("exx2", {"exx2scale": 0x3800}),
    "TOKEN_MAXIMUM": _token("quantscalepertoken", {}),
    "TOKEN_CLIP": _token(
        "quantscalepertokenfp8", {"mulConst": 0x3800, "clipMin": 0, "clipMax": 0x3C00}
    ),
    "TOPK_TIES": _topk("topkindex"),
}


def compare_all() -> dict[str, str]:
    """A digest per reading; AssertionError where engine and reference differ."""
    digests = {}
    for name, spec in CASES.items():
        trial = Trial(normals if name == "GELU_FORM" else small_numbers, ulps=1)
        compare(spec, trial)
        digest = hashlib.sha256(output_bytes(build_operation(spec), trial)).hexdigest()
        digests[name] = digest[:16]
    return digests
