"""Packed sticks, windows, divisions and arrangements that do not fit, or are not simulated."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.builder.recipes import HostOperand, reduction
from spyre.mlir.operation.operation import Component, Padding
from tests.corpus.making import BUNDLE, CorpusCase, Stage, bundle_of, patch
from tests.corpus.run import at, checked, gather, planned, tensor
from tests.hw.packed_cases import FORMAT_OF, a_stick, b_stick
from tests.mlir.sample_bundles import SAMPLES
from tests.mlir.window_recipes import Windows, conv2d, pool
from tests.runtime.arguments.test_arrangement_check import STAGGERED, widened_sum

Stick = tuple[tuple[str, int], ...]
PADDED = ((1, 1), (1, 1))


def packed(kind: str, stick: Stick = (), columns: int = 128, rows: int = 4) -> OperationSpec:
    """A matmul of a format below 16 bits; ``stick``: another one of B than the operation's.

    Many rows are divided over 16 cores.
    """
    other = {"data_format": FORMAT_OF[kind]}
    return OperationSpec(
        f"batchmatmul{kind}",
        {"mb": rows, "out": columns, "in": 128},
        [
            tensor(0, ("mb", "in"), a_stick(kind, "in", "mb"), **other),
            tensor(1, ("in", "out"), stick or b_stick(kind, "in", "out"), **other),
        ],
        [tensor(2, ("mb", "out"))],
        {"mb": 16} if rows > 16 else {},
        unit="pt",
    )


def in_lx(spec: OperationSpec) -> OperationSpec:
    """``spec`` whose inputs an earlier kernel left in LX; its output is the only argument."""
    inputs = [
        replace(operand, base=4096 + k * (1 << 18), component=Component.LX)
        for k, operand in enumerate(spec.inputs)
    ]
    return with_output(replace(spec, inputs=inputs), base=0)


def conv(
    windows: Windows, splits: dict[str, int] | None = None, source: HostOperand | None = None
) -> OperationSpec:
    """Windows over [1, 6, 6, 64]."""
    return conv2d((1, 6, 6, 64), 64, windows, source or at(0), at(1), at(2), splits)


def pooled() -> OperationSpec:
    return pool("maxpoolfwd", (1, 8, 8, 64), Windows((2, 2), (2, 2)), at(0), at(1))


def with_output(spec: OperationSpec, **changes: object) -> OperationSpec:
    return replace(spec, outputs=[replace(spec.outputs[0], **changes)])


def own_tables() -> OperationSpec:
    """Rows chosen from a table of which each core has a copy in HBM."""
    spec = gather("mb", 64, 2)
    return replace(spec, inputs=[replace(spec.inputs[0], per_core_in_hbm=True)])


def uneven_sum() -> OperationSpec:
    """Four cores add up 3, 3, 3 and 1 of 10 rows together."""
    spec = reduction("sum", (10, 64), (0,), at(0), at(1))
    return replace(spec, splits={"mb": 4}, last_extents={"mb": 1})


def mistagged(directory: Path) -> None:
    widened_sum(directory, True, ("STANDARD", STAGGERED, "STANDARD"))


def in_chunks(name: str, spec: OperationSpec) -> CorpusCase:
    words = (BUNDLE, "--numerics", "dl16-chunk")
    return CorpusCase(name, Stage.LAUNCH, "SPY542", bundle_of(spec), (), words)


PLAIN = Windows((3, 3))
LOCAL = HostOperand(4096, component=Component.LX)
MASKED = replace(conv(PLAIN), masks={"in": [(60, 4)]}, constants={"samv-maskvalue": 0})
SIZES = "/0_add/dscs_/0/add/N_/symbolicDimInfo_/mb"

CASES = (
    planned("conv_without_windows", "SPY292", replace(
        conv(Windows((3, 3), kind=Padding.NONE)), windows={}
    )),
    planned("pooling_that_loses_a_dim", "SPY292", with_output(pooled(), scale={"i": -1})),
    planned("stick_not_packed", "SPY293", in_lx(packed("int8", (("out", 128),)))),
    planned("output_too_small", "SPY294", with_output(
        in_lx(packed("int8")), device_dim_sizes={"mb": 2}
    )),
    CorpusCase(
        "arrangement_of_the_result", Stage.CHECK, "SPY296", None, (mistagged,)
    ),
    CorpusCase(
        "size_off_the_sdsc_granularity",
        Stage.LAUNCH,
        "SPY372",
        SAMPLES["runtime_rows"],
        (patch("sdsc_0.json", {f"{SIZES}/granularity_": 32}),),
        (BUNDLE, "--value", "s0=48"),
    ),
    planned("tables_of_the_cores_own", "SPY533", own_tables()),
    planned("uneven_split_of_a_sum", "SPY534", uneven_sum()),
    in_chunks("chunks_of_a_convolution", conv(Windows((3, 3), padding=PADDED))),
    in_chunks("chunks_of_fp8", in_lx(packed("fp8"))),
    planned("window_split", "SPY545", conv(PLAIN, {"ki": 3})),
    planned("window_padding_not_in_lx", "SPY546", conv(
        Windows((3, 3), padding=PADDED), {"i": 2}, LOCAL
    )),
    planned("window_input_lowered", "SPY547", conv(Windows((3, 3), kind=Padding.LOWERED))),
    planned("padding_of_the_output", "SPY548", with_output(
        conv(PLAIN), padding={"i": Padding.FULL_SPAN}
    )),
    planned("mask_of_a_convolution", "SPY549", MASKED),
    checked("packed_too_large", "SPY550", packed("int8", (), 64, 1 << 24)),
)  # fmt: skip
