"""Rules on operations: findings with their codes, and errors of the planner."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.dtypes import encode_dl16
from spyre.errors import Finding, SdscError, Severity, UnsupportedError
from spyre.hw.ops.elementwise import HALF, Family, OpDefinition
from spyre.hw.ops.rules import RULES, arrangement_faults, require_op
from spyre.hw.ops.table import OPS
from spyre.hw.plans.core_plan import check_operation, plan_operation
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction
from spyre.mlir.operation.operation import Component, Operation
from tests.hw.harness import literal_starts, region

WIDE = "IEEE_FP32"


def at(k: int, absent: tuple[int, ...] = (), data_format: str = "SEN169_FP16") -> HostOperand:
    return HostOperand(region(k), absent, data_format)


def code(value: float) -> int:
    return int(encode_dl16(np.array([value]))[0])


def built(spec: OperationSpec) -> Operation:
    return replace(build_operation(spec), file="sdsc_0.json")


def plan(op: Operation) -> None:
    starts = literal_starts(op)
    plan_operation(op, starts - starts[:, :1])


def found(op: Operation) -> list[tuple[str, str, str, str]]:
    return [(f.code, f.message, f.expected, f.found) for f in check_operation(op)]


ADD = pointwise("add", (8, 128), [at(0), at(1)], at(2), {"mb": 4})


def test_every_rule_is_tested():
    assert set(RULES.severities) == {"SPY280", "SPY281", "SPY286", "SPY295", "SPY297", "SPY522"}


def test_nothing_to_say():
    for spec in (
        ADD,
        reduction("sum", (8, 100), (1,), at(0), at(1), {"mb": 4}),
        reduction("max", (8, 128), (0,), at(0), at(1), {"out": 2, "mb": 2}),
        matmul(8, 128, 64, at(0), at(1), at(2), (2,), {"in": 2}),
        pointwise("add", (8, 128), [HostOperand(4096, component=Component.LX), at(1)], at(2)),
    ):
        assert check_operation(built(spec)) == ()


def test_unknown_and_refused_names_differ():
    unknown = replace(built(ADD), name="ad")
    refused = replace(built(ADD), name="maskbyindex")
    for op, start in (
        (unknown, "SPY520]: operation 'ad' is unknown"),
        (
            refused,
            "SPY555]: operation 'maskbyindex' is known, but not simulated: its mathematics is not "
            "public",
        ),
    ):
        with pytest.raises(UnsupportedError, match=start) as error:
            require_op(op)
        assert "\n --> sdsc_0.json at $.dscs_[0].computeOp_[0].opFuncName" in str(error.value)
        (finding,) = check_operation(op)
        assert finding == error.value.finding.as_warning
    with pytest.raises(UnsupportedError, match="help: did you mean add"):
        require_op(unknown)


@pytest.mark.parametrize("name", [n for n, row in OPS.items() if row.nonstick])
def test_only_some_reductions_have_a_nonstick_form(name: str):
    assert require_op(replace(built(ADD), name=f"{name}nonstick")) is OPS[name]
    for other in ("exx2", "quantscalepertoken", "add"):
        with pytest.raises(UnsupportedError, match="SPY520"):
            require_op(replace(built(ADD), name=f"{other}nonstick"))


def test_operand_count():
    op = replace(built(ADD), inputs=built(ADD).inputs[:1])
    expected = ("SPY280", "add: wrong number of tensors", "2 inputs and 1 output")
    assert found(op) == [(*expected, "1 inputs and 1 outputs")]
    with pytest.raises(SdscError, match="SPY280"):
        plan(op)


def test_constants_by_name():
    op = built(pointwise("clip", (8, 128), [at(0)], at(1), {}, {"clipMax": 0, "clip": 1}))
    assert found(op) == [
        ("SPY281", "clip needs the constant 'clipMin'", "clipMin", "clipMax, clip"),
        (
            "SPY297",
            "clip does not use the constant clip",
            "clipMin, clipMax, samv-maskvalue",
            "clip",
        ),
    ]
    with pytest.raises(SdscError, match="SPY281"):
        plan(op)
    names = {"clipMin": 0, "clipMax": 0, "clip": 1}
    op = built(pointwise("clip", (8, 128), [at(0)], at(1), {}, names))
    assert [f.code for f in check_operation(op)] == ["SPY297"]
    plan(op)


DL16_ONLY = [
    row
    for row in OPS.values()
    if row.formats == HALF and row.family in (Family.ELEMENTWISE, Family.REDUCTION)
]


@pytest.mark.parametrize("spec", DL16_ONLY, ids=lambda spec: spec.name)
def test_operations_of_dl16_only(spec: OpDefinition):
    """By the precision column; the message names the tensor and the accepted formats."""
    name = spec.name
    constants = dict.fromkeys(spec.constants, 0x3F800000)
    if spec.family is Family.REDUCTION:
        built_spec = reduction(
            name, (8, 128), (1,), at(0, (), WIDE), at(1, (), WIDE), {}, constants
        )
    else:
        built_spec = pointwise(name, (8, 128), [at(0, (), WIDE)], at(1, (), WIDE), {}, constants)
    op = built(built_spec)
    with pytest.raises(UnsupportedError) as error:
        plan(op)
    first = op.inputs[0]
    assert error.value.code == "SPY522"
    assert str(error.value).splitlines() == [
        f"error[SPY522]: {name}: {first.name} is IEEE_FP32, which the operation does not take",
        f" --> sdsc_0.json at {first.json_path}",
        "  = expected: SEN169_FP16",
        "  = found: IEEE_FP32",
    ]
    assert {f.code for f in check_operation(op)} == {"SPY522"}
    assert {f.severity for f in check_operation(op)} == {Severity.WARNING}


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "exp", "silu", "floor", "mish"])
def test_which_operations_take_float32(name: str):
    op = built(pointwise(name, (8, 128), [at(0, (), WIDE)], at(1, (), WIDE)))
    assert [f.code for f in check_operation(op)] == (["SPY522"] * 2 if name == "mish" else [])


def test_formats_of_conversions_and_positions():
    op = built(pointwise("fp32todl16", (8, 128), [at(0)], at(1, (), WIDE)))
    assert [f.code for f in check_operation(op)] == ["SPY522", "SPY522"]
    assert "IEEE_INT32" in OPS["topkindex"].result_formats
    assert "IEEE_INT32" not in OPS["topkindex"].formats


def topk(k: int) -> Operation:
    source = OperandSpec(("mb", "out", "x"), (("out", 64),), region(0), {"x": -1})
    target = OperandSpec(("x", "out", "mb"), (("out", 64),), region(1), {"mb": -1})
    extents = {"mb": 13, "x": k, "out": 128}
    return built(OperationSpec("topkvalue", extents, [source], [target]))


def test_k_and_the_extent():
    assert check_operation(topk(13)) == ()
    assert found(topk(14)) == [
        ("SPY286", "topkvalue: k exceeds the extent it selects from", "at most 13 along 'x'", "14")
    ]
    with pytest.raises(SdscError, match="SPY286"):
        plan(topk(14))


def mean(columns: int, scale: float, name: str = "mean", rows: int = 8) -> Operation:
    constant = "scaling_factor" if name == "mean" else "exx2scale"
    return built(reduction(name, (rows, columns), (1,), at(0), at(1), {}, {constant: code(scale)}))


@pytest.mark.parametrize("name", ["mean", "exx2", "exx2_zeromean"])
def test_scales(name: str):
    for columns in (64, 100, 127, 4096):
        assert check_operation(mean(columns, 1 / columns, name)) == ()
    constant = "scaling_factor" if name == "mean" else "exx2scale"
    assert found(mean(128, 1 / 64, name)) == [
        (
            "SPY295",
            f"{name}: {constant} is not one over the number of elements",
            "1/128 = 0.0078125",
            "0.015625",
        )
    ]
    assert {f.severity for f in check_operation(mean(128, 1 / 64, name))} == {Severity.WARNING}
    plan(mean(128, 1 / 64, name))


def test_scale_of_padding_without_a_mask():
    """Rows padded with zeros: one over the real or over the padded length, nothing else."""
    unmasked = replace(mean(100, 1 / 100), masks={})
    assert check_operation(unmasked) == ()
    assert check_operation(replace(mean(128, 1 / 128), masks={})) == ()
    short = replace(mean(100, 1 / 50), masks={})
    assert [f.code for f in check_operation(short)] == ["SPY295"]
    assert [f.code for f in check_operation(mean(128, 0.0))] == ["SPY295"]
    rows = reduction("mean", (10, 128), (0,), at(0), at(1), {}, {"scaling_factor": code(1 / 9)})
    assert [f.code for f in check_operation(built(rows))] == ["SPY295"]


def test_structure_is_checked_without_a_launch():
    rows = built(pointwise("add", (8, 128), [at(0), at(1)], at(2, (0,))))
    assert [(f.code, f.severity) for f in check_operation(rows)] == [("SPY287", Severity.ERROR)]
    swapped = matmul(64, 128, 64, at(0), at(1), at(2))
    swapped = replace(swapped, inputs=[swapped.inputs[1], swapped.inputs[0]])
    assert [f.code for f in check_operation(built(swapped))] == ["SPY284"]
    mixed = pointwise("add", (8, 128), [at(0), at(1, (), WIDE)], at(2))
    assert [f.code for f in check_operation(built(mixed))] == ["SPY283"]
    several = replace(ADD, masks={"out": [(1, 2), (5, 2)]}, constants={"samv-maskvalue": 0})
    (finding,) = check_operation(built(several))
    assert (finding.code, finding.severity) == ("SPY524", Severity.WARNING)


def test_irregular_starts_are_left_to_the_launch():
    """Whether cores that reduce together share an output is a matter of addresses."""
    spec = reduction(
        "sum", (8, 128), (0,), at(0), HostOperand(4096, component=Component.LX), {"mb": 4}
    )
    assert check_operation(built(spec)) == ()


# --- arrangements -----------------------------------------------------------------------------

STAGGERED, PACKED = "DL16_TO_FP32", "FP32_TO_DL16"


def tagged(spec: OperationSpec, *tags: str | None) -> tuple[Finding, ...]:
    """Findings with a tag per operand, inputs first."""
    op = built(spec)
    known = {t.index: tag for t, tag in zip(op.tensors, tags, strict=True) if tag is not None}
    return arrangement_faults(op, OPS[spec.name.removesuffix("nonstick")], known)


def wide_add(absent: tuple[int, ...] = ()) -> OperationSpec:
    operands = [at(0, (), WIDE), at(1, absent, WIDE)]
    return pointwise("add", (8, 128), operands, at(2, (), WIDE))


@pytest.mark.parametrize(
    "tags",
    [
        ("STANDARD", "STANDARD", "STANDARD"),
        (STAGGERED, STAGGERED, STAGGERED),
        (STAGGERED, STAGGERED, None),
        (STAGGERED, None, "STANDARD"),
        (None, None, None),
    ],
)
def test_arrangements_that_go_together(tags: tuple[str | None, ...]):
    assert tagged(wide_add(), *tags) == ()


@pytest.mark.parametrize(
    "tags",
    [
        (STAGGERED, "STANDARD", STAGGERED),
        ("STANDARD", STAGGERED, None),
        (STAGGERED, PACKED, None),
        ("EXX2", "STANDARD", None),
        (STAGGERED, STAGGERED, "STANDARD"),
        ("STANDARD", "STANDARD", STAGGERED),
    ],
)
def test_arrangements_that_do_not(tags: tuple[str | None, ...]):
    (finding,) = tagged(wide_add(), *tags)
    assert (finding.code, finding.severity) == ("SPY296", Severity.WARNING)
    assert finding.message.startswith("add: ")


def test_a_standard_operand_may_broadcast_along_the_stick():
    assert tagged(wide_add((1,)), STAGGERED, "STANDARD", STAGGERED) == ()
    assert len(tagged(wide_add((0,)), STAGGERED, "STANDARD", STAGGERED)) == 1
    assert len(tagged(wide_add((1,)), "EXX2", "STANDARD", None)) == 1


def test_arrangements_of_unary_operations_and_reductions():
    neg = pointwise("neg", (8, 128), [at(0, (), WIDE)], at(1, (), WIDE))
    assert tagged(neg, STAGGERED, STAGGERED) == ()
    assert len(tagged(neg, STAGGERED, "STANDARD")) == 1
    whole = reduction("sum", (8, 128), (1,), at(0, (), WIDE), at(1, (), WIDE))
    assert tagged(whole, STAGGERED, "STANDARD") == ()
    assert len(tagged(whole, STAGGERED, STAGGERED)) == 1
    rows = reduction("sum", (8, 128), (0,), at(0, (), WIDE), at(1, (), WIDE))
    assert tagged(rows, STAGGERED, STAGGERED) == ()
    assert len(tagged(rows, STAGGERED, "STANDARD")) == 1
    pair = reduction("exx2", (8, 128), (1,), at(0), at(1), {}, {"exx2scale": 0})
    assert tagged(pair, "STANDARD", "EXX2") == ()


def test_arrangements_of_layer_norm_and_conversions():
    inputs = [at(0), at(1, (1,)), at(2, (1,)), at(3, (0,)), at(4, (0,))]
    norm = pointwise("layernormnorm", (8, 128), inputs, at(5))
    assert tagged(norm, "STANDARD", "EXX2", *["STANDARD"] * 4) == ()
    widen = pointwise("dl16tofp32", (8, 128), [at(0)], at(1, (), WIDE))
    assert tagged(widen, PACKED, "STANDARD") == tagged(widen, "STANDARD", STAGGERED) == ()
    assert len(tagged(widen, "EXX2", None)) == 1
    narrow = pointwise("fp32todl16", (8, 128), [at(0, (), WIDE)], at(1))
    assert tagged(narrow, STAGGERED, "STANDARD") == ()
    assert len(tagged(narrow, PACKED, None)) == 1
    copy = pointwise("identity", (8, 128), [at(0)], at(1))
    assert tagged(copy, STAGGERED, "STANDARD") == ()
