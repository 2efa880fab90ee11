"""Faults of launch_spec.json, tensor files, options, cases and dumps, found before a launch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from examples.make import EXAMPLES
from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, identity, pointwise
from spyre.mlir.bundle import BundleContents
from tests.corpus.making import (
    BUNDLE,
    CorpusCase,
    Edit,
    Stage,
    array,
    arrays,
    bundle_of,
    delete,
    patch,
    text,
    write,
)
from tests.mlir.sample_bundles import SAMPLES

SPEC = "launch_spec.json"
LAYOUT = "/args/0/layout"
LOOP = EXAMPLES["add_loop"]
ADD = SAMPLES["add"]
SHAPE = (256, 512)

SIZED = """
module {
  func.func @sdsc_bundle(%n: !sdscbundle.input_arg<index, granularity=64, max_value=512>) {
    %c0 = arith.constant 0 : index
    %size = sdscbundle.input_arg_extract value from %n : !sdscbundle.input_arg<index> -> index
    %step = sdscbundle.input_arg_extract granularity from %n : !sdscbundle.input_arg<index> -> index
    scf.for %i = %c0 to %size step %step {
      sdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}
    }
    return
  }
}
"""
OFTEN = """
module {
  func.func @sdsc_bundle() {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %n = arith.constant 5000000 : index
    scf.for %i = %c0 to %n step %c1 {
      sdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}
    }
    return
  }
}
"""
HUGE_SUM = (
    "module {\n  func.func @sdsc_bundle() {\n    %c0 = arith.constant 0 : index\n"
    "    %c1 = arith.constant 1 : index\n    scf.for %i = %c0 to %c1 step %c1 {\n"
    "      %v0 = arith.addi %i, %c1 : index\n"
    + "".join(
        f"      %v{k + 1} = affine.apply affine_map<(d0) -> (d0 floordiv 3 + 1)>(%v{k})\n"
        for k in range(100)
    )
    + '      sdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}\n    }\n    return\n  }\n}\n'
)


def two_outputs() -> BundleContents:
    builder = BundleBuilder()
    x, y, z = (HostOperand(builder.argument(32 * 128 * 2).at()) for _ in range(3))
    builder.add(pointwise("neg", (32, 128), [x], y))
    builder.add(pointwise("abs", (32, 128), [x], z))
    return builder.build()


def pooled() -> BundleContents:
    builder = BundleBuilder()
    x, y = (HostOperand(builder.argument(32 * 128 * 2).at()) for _ in range(2))
    total = HostOperand(builder.temporary(32 * 128 * 2).at())
    builder.add(pointwise("neg", (32, 128), [x], total))
    builder.add(pointwise("abs", (32, 128), [total], y))
    return builder.build()


def copy_of(data_format: str) -> BundleContents:
    x, y = (HostOperand(k << 34, data_format=data_format) for k in range(2))
    return bundle_of(identity((4, 128), x, y))()


def spec_with(shape: list[Any], dtype: str = "float16", pool: int = 0, **layout: Any) -> Edit:
    """A launch_spec.json of two arguments of one shape."""
    one = {"shape": shape, "dtype": dtype, "layout": layout or None}
    args = [{"arg_index": k, "role": role, **one} for k, role in enumerate(("input", "output"))]
    content = {"version": 1, "kernel_name": "k", "args": args, "pool_size": pool}
    return write(SPEC, json.dumps(content))


def buffer(value: str | None = None, **other: Any) -> dict[str, Any]:
    layout = SpyreTensorLayout.from_host((32, 128), "float16")
    extents = {"shape": [32, 128], "stride": [128, 1]}
    return {
        "kind": "input" if value else "output",
        "nbytes": 8192,
        "dtype": "float16",
        **extents,
        "dma_sizes": [32, 128],
        "dma_strides": [128, 1],
        "layout": {
            "device_size": layout.device_size,
            "stride_map": layout.stride_map,
            "device_dtype": layout.device_dtype,
        },
        "value": value,
        **other,
    }


def case_with(**changes: Any) -> tuple[Edit, ...]:
    """A case of one kernel, negation, beside the bundle; ``changes`` to its top level."""
    content = {
        "name": "c",
        "tolerance": {"atol": 0, "rtol": 0},
        "buffers": {"x": buffer("x"), "y": buffer()},
        "launches": [{"bundle": ".", "args": ["x", "y"], "arg_index": [0, 1]}],
        "outputs": [],
    }
    values = {"x": np.ones((32, 128), np.float16)}
    return write("case.json", json.dumps({**content, **changes})), arrays("values.npz", **values)


def negation() -> BundleContents:
    builder = BundleBuilder()
    x, y = (HostOperand(builder.argument(32 * 128 * 2).at()) for _ in range(2))
    builder.add(pointwise("neg", (32, 128), [x], y))
    return builder.build()


def launch(name: str, code: str, *edits: Edit, words: str = "", bundle: Any = LOOP) -> CorpusCase:
    line = (BUNDLE, *words.split())
    return CorpusCase(name, Stage.LAUNCH, code, bundle, edits, line)


def case(name: str, code: str, words: str = "", **changes: Any) -> CorpusCase:
    return launch(name, code, *case_with(**changes), words=words, bundle=negation)


def numerics(name: str, code: str, value: str) -> CorpusCase:
    environment = {"SPYRE_NUMERICS": value}
    return CorpusCase(name, Stage.LAUNCH, code, LOOP, (), (BUNDLE,), environment)


def layout_of(**fields: Any) -> Edit:
    return patch(SPEC, {f"{LAYOUT}/{key}": value for key, value in fields.items()})


ZEROS: Mapping[str, Any] = {"values": [[0] * 512] * 256, "dtype": "float16"}

SPECS = (
    launch("spec_is_a_directory", "SPY302", write(SPEC, "[]")),
    launch("spec_not_json", "SPY302", write(SPEC, '{"version": 1')),
    launch("spec_wrong_role", "SPY302", patch(SPEC, {"/args/1/role": "temporary"})),
    launch("spec_negative_size", "SPY302", patch(SPEC, {"/args/1/shape": [-1, 4]})),
    launch("spec_unknown_arrangement", "SPY302", layout_of(element_arrangement="SHUFFLED")),
    launch("spec_unknown_format", "SPY302", layout_of(device_dtype="FP7")),
    launch("spec_newer", "SPY303", patch(SPEC, {"/version": 2})),
    launch("spec_runtime_size", "SPY366", patch(SPEC, {"/args/0/shape": ["s0", 512]})),
    launch("layout_misfit", "SPY322", layout_of(stride_map=[64, 500, 1])),
    launch("layout_tiling", "SPY810", layout_of(stride_map=[128, 512, 1])),
    launch("layout_arrangement", "SPY323", layout_of(element_arrangement="EXX2")),
    launch("layout_unstored_format", "SPY312", layout_of(device_dtype="SEN153_FP9")),
    launch("host_dtype_unknown", "SPY311", spec_with([4, 128], "complex64"), bundle=negation),
    launch("integers_as_floats", "SPY528", patch(SPEC, {"/args/0/dtype": "int64"})),
    launch(
        "layout_of_many_dims",
        "SPY529",
        spec_with(
            [2] * 11 + [64],
            device_size=[2] * 11 + [64],
            stride_map=[64 << (10 - k) for k in range(11)] + [1],
            device_dtype="SEN169_FP16",
        ),
        bundle=negation,
    ),
    launch("no_launch_spec", "SPY364", delete(SPEC), words="--check"),
    launch("no_host_dtype", "SPY368", bundle=lambda: copy_of("SEN143_FP8"), words="--check"),
    launch("pool_missing", "SPY361", spec_with([32, 128]), bundle=pooled),
    launch("memory_exhausted", "SPY401", spec_with([32, 128], pool=1 << 35), bundle=negation),
    launch("host_exhausted", "SPY382", spec_with([1 << 24, 1 << 20]), bundle=negation),
)

OPTIONS = (
    launch("shape_unreadable", "SPY337", words="--shape 10by512"),
    launch("seed_negative", "SPY338", words="--seed -1"),
    launch("shape_of_unknown_dtype", "SPY311", words="--shape 10x512@fp7"),
    launch("shape_contradicts_spec", "SPY365", words="--shape 256x511@fp16"),
    launch("shapes_too_many", "SPY365", words="--shape 256x512 " * 3),
    launch("strides_of_no_argument", "SPY363", words="--strides 9=1,2"),
    launch("strides_misfit", "SPY322", words="--strides 0=1,256"),
    launch("alias_of_no_argument", "SPY363", words="--alias 2=7"),
    launch(
        "size_off_granularity",
        "SPY173",
        write("bundle.mlir", SIZED),
        words="--value n=100",
        bundle=ADD,
    ),
    launch(
        "size_above_maximum",
        "SPY173",
        write("bundle.mlir", SIZED),
        words="--value n=1024",
        bundle=ADD,
    ),
    launch("size_without_value", "SPY366", write("bundle.mlir", SIZED), bundle=ADD),
    launch(
        "index_without_value",
        "SPY362",
        text("bundle.mlir", "func.func @sdsc_bundle()", "func.func @sdsc_bundle(%n: index)"),
        bundle=ADD,
    ),
    launch(
        "value_beyond_64_bits",
        "SPY157",
        write("bundle.mlir", SIZED),
        words=f"--value n={1 << 70}",
        bundle=ADD,
    ),
    launch("loop_too_often", "SPY175", write("bundle.mlir", OFTEN), bundle=ADD),
    launch("expression_too_large", "SPY158", write("bundle.mlir", HUGE_SUM), bundle=ADD),
    numerics("numerics_unknown", "SPY530", "posit"),
    numerics("numerics_option_unknown", "SPY540", "dl16:dma=sideways"),
    numerics("numerics_option_of_another_mode", "SPY541", "ieee:dma=trunc"),
)

FILES = (
    launch("input_missing", "SPY330", words="-i bundle/no.npy bundle/no.npy"),
    launch("input_damaged", "SPY330", write("a.npy", b"\x93NUMPY\x01"), words="-i bundle/a.npy"),
    launch("input_of_unknown_kind", "SPY331", write("a.csv", "1,2"), words="-i bundle/a.csv"),
    launch("input_without_key", "SPY332", arrays("a.npz", x=[1.0]), words="-i bundle/a.npz:y"),
    launch("input_short", "SPY333", write("a.bin", b"12"), words="-i bundle/a.bin"),
    launch(
        "input_of_another_shape",
        "SPY333",
        array("a.npy", [1, 2], "float16"),
        words="-i bundle/a.npy bundle/a.npy",
    ),
    launch(
        "input_of_another_dtype",
        "SPY334",
        array("a.npy", ZEROS["values"], "int64"),
        words="-i bundle/a.npy bundle/a.npy",
    ),
    launch("input_of_objects", "SPY335", array("a.npy", [{}], "object"), words="-i bundle/a.npy"),
    launch("inputs_too_few", "SPY367", array("a.npy", **ZEROS), words="-i bundle/a.npy"),
    launch(
        "outputs_too_many",
        "SPY369",
        array("a.npy", **ZEROS),
        words="-o bundle/a.npy bundle/a.npy",
    ),
    launch("save_unknown_kind", "SPY331", words="-q --save-output bundle/y.csv"),
    launch("save_nowhere", "SPY370", words="-q --save-output bundle/no/y.npy"),
    launch("trace_nowhere", "SPY886", words="-q --trace bundle/no/t.json"),
    launch("trace_to_a_directory", "SPY886", words="-q --trace bundle"),
    launch("save_two_in_one", "SPY336", words="-q --save-output bundle/y.npy", bundle=two_outputs),
    launch("dump_on_other_files", "SPY380", words="--dump bundle"),
    launch("dump_nowhere", "SPY381", words="-q --dump bundle/bundle.mlir/dump"),
)

REPLAYED = (
    launch("case_not_json", "SPY371", write("case.json", "{"), bundle=negation),
    case("case_of_unknown_buffer", "SPY371", launches=[
        {"bundle": ".", "args": ["x", "z"], "arg_index": [0, 1]}
    ]),
    case("case_without_array", "SPY371", buffers={"x": buffer("w"), "y": buffer()}),
    case("case_of_unknown_option", "SPY371", run={"tomorrow": True}),
    case("case_verified_and_traced", "SPY887", "--trace t.json", run={"verify": True}),
    case("case_of_mixed_outputs", "SPY371", outputs=[
        {"buffer": "y", "value": value, "shape": [1], "stride": [1], "storage_offset": 0,
         "dtype": "float16"} for value in ("y", None)
    ]),
    case("case_alias_of_alias", "SPY371", buffers={
        "x": buffer("x", alias_of="y"), "y": buffer(alias_of="x")
    }),
    case("case_value_of_no_parameter", "SPY171", launches=[
        {"bundle": ".", "args": ["x", "y"], "arg_index": [0, 1], "values": {"rows": 4}}
    ]),
    case("case_without_argument", "SPY363", launches=[
        {"bundle": ".", "args": ["x"], "arg_index": [0]}
    ]),
    case("case_layout_malformed", "SPY320", buffers={
        "x": buffer("x"),
        "y": buffer(layout={"device_size": [2], "stride_map": [1, 2], "device_dtype": "BOOL"}),
    }),
    case("case_format_unknown", "SPY310", buffers={
        "x": buffer("x"),
        "y": buffer(layout={"device_size": [2], "stride_map": [1], "device_dtype": "FP7"}),
    }),
)  # fmt: skip

CASES = (*SPECS, *OPTIONS, *FILES, *REPLAYED)
