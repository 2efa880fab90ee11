"""Refusals of unsupported operations name operation, file, supported and found values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from spyre.errors import UnsupportedError
from spyre.hw.plans.core_plan import plan_operation
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise, reduction
from spyre.mlir.operation.operation import Component, Operation
from tests.hw.harness import literal_starts, region

FILE = "somewhere/sdsc_7.json"


def at(k: int, data_format: str = "SEN169_FP16") -> HostOperand:
    return HostOperand(region(k), (), data_format)


def add() -> Operation:
    return build_operation(pointwise("add", (8, 128), [at(0), at(1)], at(2)))


def of_half() -> Operation:
    operands = [at(0, "IEEE_FP16"), at(1, "IEEE_FP16")]
    return build_operation(pointwise("add", (8, 128), operands, at(2, "IEEE_FP16")))


def apart() -> Operation:
    scratchpad = HostOperand(4096, component=Component.LX)
    return build_operation(reduction("sum", (8, 128), (0,), at(0), scratchpad, {"mb": 4}))


def masked_twice() -> Operation:
    spec = pointwise("exp", (8, 128), [at(0)], at(1))
    masks = {"out": [(1, 2), (5, 2)]}
    return build_operation(replace(spec, masks=masks, constants={"samv-maskvalue": 0}))


def pair_of_rows() -> Operation:
    spec = reduction("exx2", (8, 128), (0,), at(0), at(1), {}, {"exx2scale": 0x3E00})
    return build_operation(replace(spec, name="exx2"))


REFUSED: dict[str, tuple[Callable[[], Operation], str]] = {
    "unknown": (lambda: replace(add(), name="frobnicate"), "SPY520"),
    "rows": (pair_of_rows, "SPY520"),
    "not public": (lambda: replace(add(), name="keepbyindex"), "SPY555"),
    "format": (of_half, "SPY522"),
    "irregular": (apart, "SPY523"),
    "masks": (masked_twice, "SPY524"),
    "index": (lambda: replace(add(), index_tensors=add().inputs[:1]), "SPY532"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_operation_file_and_what_is_supported(name: str):
    make, code = REFUSED[name]
    op = replace(make(), file=FILE)
    starts = literal_starts(op)
    with pytest.raises(UnsupportedError) as error:
        plan_operation(op, starts - starts[:, :1])
    finding = error.value.finding
    assert finding.code == code
    assert op.name in finding.message
    assert FILE in str(finding.location)
    assert finding.expected
    assert finding.found
    assert error.value.exit_code == 2
