"""A KTIR text and a bundle of one computation: equal bits, equal counters, equal modelled times."""

from __future__ import annotations

import numpy as np
import pytest

import spyre
from spyre.hw.device.device import Device
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction
from spyre.mlir.bundle import write_bundle
from spyre.mlir.tiles.program import load_ktir
from spyre.runtime.profile import profile

ROWS, COLUMNS, TILES = 32, 128, 2


def box(shape):
    bounds = ", ".join(f"d{k} >= 0, -d{k} + {n - 1} >= 0" for k, n in enumerate(shape))
    return f"affine_set<({', '.join(f'd{k}' for k in range(len(shape)))}) : ({bounds})>"


def text(tiles, operands, body):
    """``operands``: name → shape of the view, first index, shape of the tile."""
    lines = ["%c0 = arith.constant 0 : index", "%id = ktdp.get_compute_tile_id : index"]
    lines += [f"%n = arith.constant {ROWS // tiles} : index", "%row = arith.muli %id, %n : index"]
    for name, (shape, at, part) in operands.items():
        strides = [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
        whole, tile = ("x".join(map(str, sizes)) for sizes in (shape, part))
        lines += [
            f"%v{name} = ktdp.construct_memory_view %{name}, sizes: {list(shape)}, strides: "
            f"{strides} {{coordinate_set = {box(shape)}, memory_space = "
            f"#ktdp.memory_space<global>}} : memref<{whole}xf16>",
            f"%t{name} = ktdp.construct_access_tile %v{name}[{at}] {{access_tile_set = "
            f"{box(part)}}} : memref<{whole}xf16> -> !ktdp.access_tile<{tile}xindex>",
        ]
        if name != "z":
            lines.append(
                f"%{name}0 = ktdp.load %t{name} : !ktdp.access_tile<{tile}xindex> -> "
                f"tensor<{tile}xf16>"
            )
    tile = "x".join(map(str, operands["z"][2]))
    lines += [*body, f"ktdp.store %r, %tz : tensor<{tile}xf16>, !ktdp.access_tile<{tile}xindex>"]
    parameters = ", ".join(f"%{name}: index" for name in operands)
    body_text = "\n  ".join([*lines, "return"])
    return f"func.func @f({parameters}) attributes {{grid = [{tiles}]}} {{\n  {body_text}\n}}\n"


def sticks(values):
    """The tensor as device memory holds it: sticks of 64 columns, rows in each."""
    return np.ascontiguousarray(values.reshape(len(values), -1, 64).transpose(1, 0, 2))


STICKS = (COLUMNS // 64, ROWS, 64)
PART = (COLUMNS // 64, ROWS // TILES, 64)
WHOLE = (STICKS, "%c0, %row, %c0", PART)
T = "tensor<2x16x64xf16>"


def elementwise(name, expression, inputs):
    names = ["x", "y"][:inputs]
    program = text(TILES, dict.fromkeys([*names, "z"], WHOLE), [f"%r = {expression} : {T}"])
    builder = BundleBuilder(symbolic=True)
    buffers = [builder.argument(ROWS * COLUMNS * 2) for _ in range(inputs + 1)]
    *given, result = (HostOperand(buffer.at()) for buffer in buffers)
    builder.add(pointwise(name, (ROWS, COLUMNS), given, result, {"mb": TILES}))
    return program, builder, names, sticks


def column_sums():
    operands = {"x": (STICKS, "%c0, %c0, %c0", STICKS), "z": ((2, 64), "%c0, %c0", (2, 64))}
    program = text(1, operands, [
        "%e = tensor.empty() : tensor<2x64xf16>",
        "%r = linalg.reduce { arith.addf } ins(%x0 : tensor<2x32x64xf16>) outs(%e : "
        "tensor<2x64xf16>) dimensions = [1]",
    ])  # fmt: skip
    builder = BundleBuilder(symbolic=True)
    x, z = builder.argument(ROWS * COLUMNS * 2), builder.argument(COLUMNS * 2)
    builder.add(reduction("sum", (ROWS, COLUMNS), [0], HostOperand(x.at()), HostOperand(z.at())))
    return program, builder, ["x"], lambda values: values.reshape(2, 64)


def row_sums():
    """The total in all lanes of a stick, as an emitter writes it."""
    operands = {"x": WHOLE, "z": ((ROWS, 64), "%row, %c0", (ROWS // TILES, 64))}
    program = text(TILES, operands, [
        "%e = tensor.empty() : tensor<16x64xf16>",
        "%r = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>, "
        "affine_map<(d0, d1, d2, d3) -> (d1, d3)>], iterator_types = [\"reduction\", "
        "\"parallel\", \"reduction\", \"parallel\"]} ins(%x0 : tensor<2x16x64xf16>) outs(%e : "
        "tensor<16x64xf16>) {",
        "^bb0(%a: f16, %b: f16):",
        "  %s = arith.addf %a, %b : f16",
        "  linalg.yield %s : f16",
        "} -> tensor<16x64xf16>",
    ])  # fmt: skip
    builder = BundleBuilder(symbolic=True)
    x, z = builder.argument(ROWS * COLUMNS * 2), builder.argument(ROWS * 128)
    operands = HostOperand(x.at()), HostOperand(z.at())
    builder.add(reduction("sum", (ROWS, COLUMNS), [1], *operands, {"mb": TILES}))
    return program, builder, ["x"], lambda values: values[:, None]


def product():
    part = (ROWS // TILES, 64)
    operands = {
        "x": ((ROWS, 64), "%row, %c0", part), "y": ((64, 64), "%c0, %c0", (64, 64)),
        "z": ((ROWS, 64), "%row, %c0", part),
    }  # fmt: skip
    program = text(TILES, operands, [
        "%e = tensor.empty() : tensor<16x64xf16>",
        "%r = linalg.matmul ins(%x0, %y0 : tensor<16x64xf16>, tensor<64x64xf16>) outs(%e : "
        "tensor<16x64xf16>) -> tensor<16x64xf16>",
    ])  # fmt: skip
    builder = BundleBuilder(symbolic=True)
    x, y, z = (builder.argument(n * 128) for n in (ROWS, 64, ROWS))
    operands = (HostOperand(b.at()) for b in (x, y, z))
    builder.add(matmul(ROWS, 64, 64, *operands, splits={"mb": TILES}))
    return program, builder, ["x", "y"], lambda values: values


TWINS = {
    "add": lambda: elementwise("add", "arith.addf %x0, %y0", 2),
    "mul": lambda: elementwise("mul", "arith.mulf %x0, %y0", 2),
    "exp": lambda: elementwise("exp", "math.exp %x0", 1),
    "column sums": column_sums,
    "row sums": row_sums,
    "product": product,
}


@pytest.mark.parametrize("mode", ["dl16", "ieee"])
@pytest.mark.parametrize("name", TWINS)
def test_twins(tmp_path, name, mode):
    program, builder, names, in_memory = TWINS[name]()
    write_bundle(builder.build(), tmp_path)
    rng = np.random.default_rng(0)
    shapes = [(ROWS, 64), (64, 64)] if name == "product" else [(ROWS, COLUMNS)] * 2
    values = [rng.standard_normal(s).astype(np.float16) for s in shapes[: len(names)]]
    device = Device(mode, 1)
    bundle = spyre.run(str(tmp_path), values, device=device)
    laid_out = values if name == "product" else [sticks(v) for v in values]
    tiles = spyre.run(load_ktir(program), dict(zip(names, laid_out, strict=True)), device=device)
    found = np.asarray(bundle.outputs[0])
    expected = found if name == "product" else in_memory(found)
    np.testing.assert_array_equal(*np.broadcast_arrays(np.asarray(tiles.outputs[0]), expected))
    mine, other = (result.counters for result in (tiles, bundle))
    assert mine == other
    assert profile(tiles).compute_ns == pytest.approx(profile(bundle).compute_ns, rel=0.05)
