"""Cases that planning refuses, or that fault or differ when the bundle runs."""

from __future__ import annotations

import json

from msgspec.structs import replace

from examples.make import EXAMPLES
from spyre.mlir.builder.operations import OperandSpec, OperationSpec
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction
from spyre.mlir.operation.operation import Component, Indirection
from tests.corpus.launch import spec_with
from tests.corpus.making import (
    BUNDLE,
    CorpusCase,
    Edit,
    Stage,
    array,
    bundle_of,
    patch,
    text,
    write,
)
from tests.mlir.sample_bundles import SAMPLES

STICK = (("out", 64),)
LOOP = EXAMPLES["add_loop"]
DSC = "/0_add/dscs_/0/add"
REGION = 1 << 34
GATHER_SPEC = json.dumps(
    {
        "version": 1,
        "kernel_name": "gather",
        "args": [
            {"arg_index": 0, "role": "input", "shape": [16], "dtype": "int32", "layout": None},
            {"arg_index": 1, "role": "input", "shape": [64, 128], "dtype": "float16", "layout": {
                "device_size": [64, 2, 64], "stride_map": [128, 64, 1],
                "device_dtype": "SEN169_FP16"}},
            {"arg_index": 2, "role": "output", "shape": [16, 128], "dtype": "float16",
             "layout": None},
        ],
    }
)  # fmt: skip


def at(k: int, absent: tuple[int, ...] = (), data_format: str = "SEN169_FP16") -> HostOperand:
    return HostOperand(k * REGION, absent, data_format)


def tensor(k: int, dims: tuple[str, ...], stick: tuple[tuple[str, int], ...] = STICK, **other):
    return OperandSpec(dims, stick, k * REGION, **other)


def planned(name: str, code: str, spec: OperationSpec, *edits: Edit) -> CorpusCase:
    """An operation that no planner accepts."""
    return CorpusCase(name, Stage.LAUNCH, code, bundle_of(spec), edits, (BUNDLE,))


def topk(k: int = 4, splits: dict[str, int] | None = None) -> OperationSpec:
    source = tensor(0, ("mb", "out", "x"), scale={"x": -1})
    target = tensor(1, ("x", "out", "mb"), scale={"mb": -1})
    return OperationSpec(
        "topkvalue", {"mb": 8, "x": k, "out": 64}, [source], [target], splits or {}
    )


def gather(
    dim: str,
    rows: int,
    cores: int = 1,
    op: str = "identity",
    table: tuple[str, ...] = ("out", "mb"),
    beside: dict[str, int] | None = None,
) -> OperationSpec:
    """Rows of a table of dims ``table`` by an index over ``dim``, and dims ``beside`` it."""
    more = beside or {}
    index = OperandSpec(
        (*more, dim),
        ((dim, 32),),
        0,
        data_format="SENUINT32",
        role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )
    pages = dict.fromkeys((dim, *more), 1)
    value = tensor(1, (*table, *more), max_dim_sizes=pages, indirection=Indirection.VALUE)
    out = tensor(2, ("mb", "out", *more))
    extents = {"mb": rows, "out": 128, **more}
    return OperationSpec(op, extents, [value], [out], {"mb": cores}, index_inputs=[index])


def scattered_axes() -> OperationSpec:
    """A sum over every other one of eight dims."""
    dims = ("mb", "out", "j", "i", "y", "x", "ki", "kj")
    kept = dict.fromkeys(("out", "i", "x", "kj"), -1)
    return OperationSpec(
        "sumnonstick",
        {**dict.fromkeys(dims, 2), "out": 128},
        [tensor(0, dims)],
        [tensor(1, dims, scale={d: -1 for d in dims if d not in (*kept, "out")})],
    )


def masked_twice() -> OperationSpec:
    spec = pointwise("exp", (4, 64), [at(0)], at(1))
    return replace(spec, masks={"out": [(1, 2), (5, 2)]}, constants={"samv-maskvalue": 0})


def in_scratchpads() -> OperationSpec:
    target = HostOperand(4096, component=Component.LX)
    return reduction("sum", (8, 128), (0,), at(0), target, {"mb": 4})


def of_two_dims() -> OperationSpec:
    stick = (("out", 32), ("mb", 2))
    return OperationSpec(
        "neg",
        {"mb": 4, "out": 64},
        [tensor(0, ("mb", "out"), stick)],
        [tensor(1, ("mb", "out"), stick)],
    )


def crossed(name: str) -> OperationSpec:
    """Input and output with different stick dims."""
    return OperationSpec(
        name,
        {"mb": 64, "out": 64},
        [tensor(0, ("mb", "out"))],
        [tensor(1, ("out", "mb"), (("mb", 64),))],
    )


def flat_matmul() -> OperationSpec:
    spec = matmul(64, 64, 64, at(0), at(1), at(2))
    wrong = replace(spec.outputs[0], stick=(("mb", 64),))
    return replace(spec, outputs=[wrong])


def checked(name: str, code: str, spec: OperationSpec) -> CorpusCase:
    """Operations that run, but look wrong."""
    return CorpusCase(name, Stage.CHECK, code, bundle_of(spec))


def mean_by(scale: int) -> OperationSpec:
    constants = {"scaling_factor": scale}
    return reduction("mean", (4, 128), (1,), at(0), at(1), None, constants)


def run(name: str, code: str, *edits: Edit, words: str = "", bundle=LOOP) -> CorpusCase:
    return CorpusCase(name, Stage.RUN, code, bundle, edits, (BUNDLE, *words.split()))


PLANNED = (
    planned("op_unknown", "SPY520", pointwise("frobnicate", (4, 64), [at(0)], at(1))),
    planned("op_undefined", "SPY555", pointwise("maskbyindex", (4, 64), [at(0)], at(1))),
    planned("op_with_too_few_inputs", "SPY280", pointwise("add", (4, 64), [at(0)], at(1))),
    planned("op_without_constant", "SPY281", pointwise("clip", (4, 64), [at(0)], at(1))),
    planned("sticks_differ", "SPY283", crossed("neg")),
    planned("matmul_structure", "SPY284", flat_matmul()),
    planned("topk_structure", "SPY285", pointwise("topkvalue", (8, 64), [at(0)], at(1))),
    planned("topk_too_many", "SPY286", topk(9)),
    planned("dims_differ", "SPY287", pointwise("neg", (8, 128), [at(0)], at(1, (0,)))),
    planned("stick_of_two_dims", "SPY521", of_two_dims(), spec_with([4, 64])),
    planned("format_not_computed", "SPY522", matmul(
        64, 64, 64, *(at(k, (), "IEEE_FP32") for k in range(3))
    )),
    planned("partial_sums_in_scratchpads", "SPY523", in_scratchpads()),
    planned("several_masks", "SPY524", masked_twice()),
    planned("scattered_axes", "SPY525", scattered_axes()),
    planned("indices_along_the_stick", "SPY526", gather("out", 16, table=("mb", "out"))),
    planned("indices_of_unknown_step", "SPY262", gather("out", 16)),
    planned("indices_split_in_a_stick", "SPY527", gather("mb", 96, 2, beside={"x": 2})),
    planned("topk_split", "SPY531", topk(4, {"mb": 2})),
    planned("gather_that_computes", "SPY532", gather("mb", 16, op="neg")),
)  # fmt: skip

CHECKED = (
    checked("mean_of_another_count", "SPY295", mean_by(0x3C00)),
    checked("constant_of_no_use", "SPY297", pointwise(
        "neg", (4, 64), [at(0)], at(1), None, {"eps": 0x3C00}
    )),
)  # fmt: skip

FAULTS = (
    run("loop_too_long", "SPY411", text("bundle.mlir", "constant 4 :", "constant 5 :")),
    run("gap_too_large", "SPY411", text("sdsc_0.json", "192", "1920")),
    run("argument_too_short", "SPY411", patch(
        "launch_spec.json",
        {"/args/1/shape": [128, 512], "/args/1/layout/device_size": [8, 128, 64]},
    )),
    run(
        "index_out_of_range",
        "SPY412",
        array("i.npy", [999] * 16, "int32"),
        array("t.npy", [[0.0] * 128] * 64, "float16"),
        write("launch_spec.json", GATHER_SPEC),
        bundle=SAMPLES["gather"],
        words="-q -i bundle/i.npy bundle/t.npy",
    ),
    run("element_not_aligned", "SPY413", patch(
        "sdsc_0.json", {f"{DSC}/scheduleTree_/0/startAddressCoreCorelet_/data_/[0, 0, 0]": "1"}
    ), bundle=SAMPLES["add"]),
    run("expected_of_another_shape", "SPY602", array("e.npy", [1, 2], "float16"),
        words="-q -o bundle/e.npy"),
    run("too_large_to_verify", "SPY621", words="--verify --verify-points 100"),
)  # fmt: skip

CASES = (*PLANNED, *CHECKED, *FAULTS)
