"""KTIR programs on the engine: numbers, statements, and what is refused."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import spyre
from spyre.errors import DeviceFault, LaunchError, UnsupportedError
from spyre.hw.device.device import Device
from spyre.mlir.tiles.program import load_ktir
from tests.mlir.tiles.corpus import COLLECTION, EXAMPLES, needs_collection

READS_PLACES = ("kc-lx_kernel",)
"""Programs whose expected memory is where another interpreter places values: they run elsewhere."""


@pytest.fixture(scope="module")
def device():
    return Device(threads=1)


def halves(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values.astype(np.float16).view(np.uint16) & 0xFFFE).view(np.float16)


def run(text_or_name, given, device, **options):
    path = EXAMPLES / f"{text_or_name}.ktir"
    program = load_ktir(path if "\n" not in text_or_name else text_or_name)
    return spyre.run(program, given, device=device, **options)


def test_add(device):
    x, y = halves(4096), halves(4096, seed=1)
    result = run("add", {"x": x, "y": y}, device, verify=True)
    np.testing.assert_allclose(result.outputs[0], x.astype(np.float32) + y, rtol=2**-9)
    assert [report.op for report in result.executes] == ["add"]  # loads and store are folded


def test_softmax(device):
    x = halves(64, 256)
    (found,) = run("softmax", {"x": x}, device, verify=True).outputs
    terms = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        found, terms / terms.sum(axis=1, keepdims=True), rtol=0.01, atol=1e-4
    )


def test_product(device):
    a, b = halves(64, 512), halves(512, 256, seed=1)
    (found,) = run("product", {"a": a, "b": b, "k": 512}, device, verify=True).outputs
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=0.02, atol=0.2)


@pytest.mark.parametrize("mode", ["dl16", "ieee", "dl16-chunk"])
def test_a_product_into_float32(mode):
    text = (EXAMPLES / "product.ktir").read_text()
    for old, new in (
        ("tensor<32x64xf16>", "tensor<32x64xf32>"),
        ("memref<64x256xf16>", "memref<64x256xf32>"),
    ):
        text = text.replace(old, new)
    a, b = halves(64, 512), halves(512, 256, seed=1)
    result = run(text, {"a": a, "b": b, "k": 512}, Device(mode, 1), verify=True)
    np.testing.assert_allclose(result.outputs[0], a.astype(np.float64) @ b, rtol=1e-5, atol=1e-4)


def test_fewer_trips_of_a_loop(device):
    """A bound is a value of the launch; without a trip the carried tile is the first one."""
    a, b = halves(64, 512), halves(512, 256, seed=1)
    (found,) = run("product", {"a": a, "b": b, "k": 128}, device).outputs
    np.testing.assert_allclose(found, a[:, :128].astype(np.float64) @ b[:128], rtol=0.02, atol=0.1)
    (found,) = run("product", {"a": a, "b": b, "k": 0}, device).outputs
    assert not found.any()


def test_equal_bits_in_ieee_numbers_and_any_core_order():
    given = {"x": halves(64, 256)}
    one = run("softmax", given, Device("ieee", 1)).outputs[0]
    for other in (Device("ieee", 2), Device("ieee", 1, core_order="random:3")):
        np.testing.assert_array_equal(run("softmax", given, other).outputs[0], one)


def test_a_program_is_traced_once_per_launch_values(device, monkeypatch):
    from spyre.runtime.run import tiles

    traced, trace = [], tiles.trace_function

    def counted(*arguments):
        traced.append(1)
        return trace(*arguments)

    monkeypatch.setattr(tiles, "trace_function", counted)
    program = load_ktir(EXAMPLES / "add.ktir")
    for seed in (1, 2, 3):
        x, y = halves(4096, seed=seed), halves(4096)
        (found,) = spyre.run(program, {"x": x, "y": y}, device=device).outputs
        np.testing.assert_allclose(found, x.astype(np.float32) + y, rtol=2**-9)
    assert len(traced) == 1


UNEVEN = """func.func @uneven(%x: index, %y: index) attributes {grid = [3]} {
  %zero = arith.constant 0 : index
  %three = arith.constant 3 : index
  %rows = arith.constant 7 : index
  %tile = ktdp.get_compute_tile_id : index
  %v = ktdp.construct_memory_view %x, sizes: [7, 64], strides: [64, 1] {
    memory_space = #ktdp.memory_space<global>} : memref<7x64xf16>
  %w = ktdp.construct_memory_view %y, sizes: [7, 64], strides: [64, 1] {
    memory_space = #ktdp.memory_space<global>} : memref<7x64xf16>
  scf.for %i = %tile to %rows step %three {
    %s = ktdp.construct_access_tile %v[%i, %zero] {access_tile_set =
      affine_set<(a, b) : (a == 0, b >= 0, -b + 63 >= 0)>}
      : memref<7x64xf16> -> !ktdp.access_tile<1x64xindex>
    %t = ktdp.construct_access_tile %w[%i, %zero] {access_tile_set =
      affine_set<(a, b) : (a == 0, b >= 0, -b + 63 >= 0)>}
      : memref<7x64xf16> -> !ktdp.access_tile<1x64xindex>
    %a = ktdp.load %s : !ktdp.access_tile<1x64xindex> -> tensor<1x64xf16>
    %even = arith.cmpi eq, %i, %three : index
    %b = scf.if %even -> (tensor<1x64xf16>) {
      %c = arith.addf %a, %a : tensor<1x64xf16>
      scf.yield %c : tensor<1x64xf16>
    } else {
      %c = arith.negf %a : tensor<1x64xf16>
      scf.yield %c : tensor<1x64xf16>
    }
    ktdp.store %b, %t : tensor<1x64xf16>, !ktdp.access_tile<1x64xindex>
  }
  return
}
"""


def test_tiles_of_different_trip_counts_and_branches(device):
    x = halves(7, 64)
    (found,) = run(UNEVEN, {"x": x}, device, verify=True).outputs
    expected = -x.astype(np.float32)
    expected[3] = 2 * x[3]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "edits", "given", "error", "code"),
    [
        ("add", (("constant 512 ", "constant 520 "),), {}, DeviceFault, "SPY414"),
        ("add", (), {"y": halves(4000)}, LaunchError, "SPY343"),
        ("add", (), {"y": np.zeros(4096, np.float32)}, LaunchError, "SPY344"),
        ("add", (), {"q": 3}, LaunchError, "SPY342"),
        ("product", (), {"k": None}, LaunchError, "SPY342"),
        ("product", (("to %k step %step", "to %k step %zero"),), {}, LaunchError, "SPY150"),
        ("add", (("arith.muli %tile, %length", "arith.divui %tile, %zero"),
                 ("%length = arith", "%zero = arith.constant 0 : index\n %length = arith")), {},
         LaunchError, "SPY125"),
    ],
)  # fmt: skip
def test_wrong_launches(device, name, edits, given, error, code):
    text = (EXAMPLES / f"{name}.ktir").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    default = {
        "add": {"x": halves(4096), "y": halves(4096)},
        "product": {"a": halves(64, 512), "b": halves(512, 256), "k": 512},
    }[name]
    values = {n: v for n, v in {**default, **given}.items() if v is not None}
    with pytest.raises(error) as raised:
        spyre.run(load_ktir(text), values, device=device)
    assert raised.value.code == code
    assert raised.value.location is not None or code == "SPY342"


def test_a_bound_read_from_memory_is_refused(device):
    text = UNEVEN.replace(
        "%even = arith.cmpi eq, %i, %three : index",
        "%number = tensor.extract %a[%zero, %zero] : tensor<1x64xf16>\n"
        "    %bound = arith.fptosi %number : f16 to i32\n"
        "    %zero32 = arith.constant 0 : i32\n"
        "    %even = arith.cmpi eq, %bound, %zero32 : i32",
    )
    with pytest.raises(UnsupportedError) as raised:
        run(text, {"x": halves(7, 64)}, device)
    assert raised.value.code in ("SPY194", "SPY557")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("load %x_tile : !ktdp.access_tile<512xindex>", "load %x_view : memref<4096xf16>"),
        (", %z_tile : tensor<512xf16>, !ktdp.access_tile<512xindex>",
         ", %z_view : tensor<512xf16>, memref<4096xf16>"),
    ],
)  # fmt: skip
def test_only_access_tiles_are_loaded_and_stored(device, right, wrong):
    """Without the checker, which names it first."""
    text = (EXAMPLES / "add.ktir").read_text()
    assert right in text
    given = {"x": halves(4096), "y": halves(4096), "z": halves(4096)}
    with pytest.raises(UnsupportedError) as raised:
        run(text.replace(right, wrong), given, device, check=False)
    assert raised.value.code == "SPY557"


def test_tiles_that_do_not_fit_are_in_device_memory(device):
    text = (EXAMPLES / "add.ktir").read_text().replace("4096", "8388608").replace("4095", "8388607")
    text = text.replace("512", "1048576").replace("511", "1048575")
    text = text.replace("arith.addf %a, %b", "arith.addf %a, %a")
    x = np.tile(halves(4096), 2048)
    result = spyre.run(load_ktir(text), {"x": x, "y": x}, device=device)
    np.testing.assert_allclose(result.outputs[0][:4096], 2 * x[:4096].astype(np.float32))
    assert [finding.code for finding in result.findings] == ["SPY197"]


DELIVERY = """func.func @sums(%x: index, %y: index) attributes {grid = [4]} {
  %zero = arith.constant 0 : index
  %two = arith.constant 2 : index
  %none = arith.constant dense<0.0> : tensor<1x64xf16>
  %tile = ktdp.get_compute_tile_id : index
  %v = ktdp.construct_memory_view %x, sizes: [4, 64], strides: [64, 1] {
    memory_space = #ktdp.memory_space<global>} : memref<4x64xf16>
  %w = ktdp.construct_memory_view %y, sizes: [4, 64], strides: [64, 1] {
    memory_space = #ktdp.memory_space<global>} : memref<4x64xf16>
  %s = ktdp.construct_access_tile %v[%tile, %zero] {access_tile_set =
    affine_set<(a, b) : (a == 0, b >= 0, -b + 63 >= 0)>}
    : memref<4x64xf16> -> !ktdp.access_tile<1x64xindex>
  %t = ktdp.construct_access_tile %w[%tile, %zero] {access_tile_set =
    affine_set<(a, b) : (a == 0, b >= 0, -b + 63 >= 0)>}
    : memref<4x64xf16> -> !ktdp.access_tile<1x64xindex>
  %a = ktdp.load %s : !ktdp.access_tile<1x64xindex> -> tensor<1x64xf16>
  %f = ktdp.inter_tile_produce producer_tiles_per_group =
    affine_set<(i)[g] : (i - 2 * g >= 0, -i + 2 * g + 1 >= 0)>
    -> !ktdp.tile_future<(tensor<1x64xf16>), groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>> {
    ^bb0(%g: index):
      ktdp.yield_partial %a : tensor<1x64xf16>
  }
  %b = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group =
    affine_set<(i)[g] : (i - 2 * g >= 0, -i + 2 * g + 1 >= 0)>,
    identity(%none : tensor<1x64xf16>) : !ktdp.tile_future<(tensor<1x64xf16>),
    groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>> -> tensor<1x64xf16> {
    ^bb0(%l: tensor<1x64xf16>, %r: tensor<1x64xf16>):
      %c = arith.addf %l, %r : tensor<1x64xf16>
      ktdp.yield_reduced %c : tensor<1x64xf16>
  }
  ktdp.store %b, %t : tensor<1x64xf16>, !ktdp.access_tile<1x64xindex>
  return
}
"""


def test_a_sum_over_the_tiles_of_a_group(device):
    x = halves(4, 64)
    (found,) = run(DELIVERY, {"x": x}, device, verify=True).outputs
    pairs = x.astype(np.float32).reshape(2, 2, 64).sum(axis=1)
    np.testing.assert_allclose(found, np.repeat(pairs, 2, axis=0), rtol=2**-9)


def test_a_delivery_that_some_tiles_of_a_group_do_not_reach(device):
    text = DELIVERY.replace(
        "%f = ktdp", "%first = arith.cmpi eq, %tile, %zero : index\n  scf.if %first {\n %f = ktdp"
    )
    text = text.replace("  return\n", "  }\n  return\n")
    with pytest.raises(DeviceFault, match="SPY415") as raised:
        run(text, {"x": halves(4, 64)}, device)
    assert "[1]" in raised.value.finding.found


@needs_collection
def test_programs_of_the_collection():
    sys.path.insert(0, str(COLLECTION))
    from cases import cases

    devices = {mode: Device(mode, 1) for mode in (None, "ieee")}
    for name, case in cases(str(COLLECTION)).items():
        if name in READS_PLACES:
            continue
        given = {n: v for n, v in case.arguments.items() if n not in case.omitted}
        given |= {place(key): np.zeros_like(v) for key, v in case.expected_memory.items()}
        given |= {place(key): values for key, values in case.memory.items()}
        result = spyre.run(
            load_ktir(case.path), given, function=case.function,
            device=devices["ieee" if case.needs_ieee else None], verify=True,
        )  # fmt: skip
        found = {t.name: v for t, v in zip(result.output_tensors, result.outputs, strict=True)}
        assert all(case.agrees(n, found[n])[0] for n in case.expected), name
        assert all(case.agrees(k, found[place(k)])[0] for k in case.expected_memory), name


def place(key):
    """The name of memory at an address of a program's own."""
    space, tile, address = key
    return f"@{'' if space == 'global' else f'{tile}:'}{address:#x}"


def test_a_large_start_of_a_maximum_counts(device):
    text = of_tile(
        """
  %s = arith.constant -1.0e+10 : f32
  %e = tensor.empty() : tensor<1xf32>
  %f = linalg.fill ins(%s : f32) outs(%e : tensor<1xf32>) -> tensor<1xf32>
  %m = linalg.reduce { arith.maximumf } ins(%a : tensor<1x64xf32>) outs(%f : tensor<1xf32>)
    dimensions = [1]
  %o = tensor.empty() : tensor<1x64xf32>
  %r = linalg.broadcast ins(%m : tensor<1xf32>) outs(%o : tensor<1x64xf32>) dimensions = [1]""",
        "f32",
    )
    x = np.full((4, 64), -1e20, np.float32)
    x[1, 3] = -1.0
    (found,) = run(text, {"x": x, "n": 0}, device, verify=True).outputs
    expected = np.repeat(np.float32([[-1e10], [-1.0], [-1e10], [-1e10]]), 64, axis=1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("element", ["f16", "f32"])
@pytest.mark.parametrize("name", ["addf", "mulf", "maximumf"])
def test_a_total_in_all_elements_of_a_row(device, name, element):
    """One stick of 16-bit floats is filled by the reduction, two of float32 by a copy."""
    text = of_tile(
        f"""
  %e = tensor.empty() : tensor<1x64x{element}>
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j, k) -> (i, j)>,
    affine_map<(i, j, k) -> (i, k)>], iterator_types = ["parallel", "reduction", "parallel"]}}
    ins(%a : tensor<1x64x{element}>) outs(%e : tensor<1x64x{element}>) {{
    ^bb0(%p: {element}, %q: {element}):
      %s = arith.{name} %p, %q : {element}
      linalg.yield %s : {element}
  }} -> tensor<1x64x{element}>""",
        element,
    )
    x = np.round(halves(4, 64) * 16 + 128).astype(np.float16 if element == "f16" else np.float32)
    x /= 128  # numbers that DL16 has
    fold = {"addf": np.sum, "mulf": np.prod, "maximumf": np.max}[name]
    result = run(text, {"x": x, "n": 0}, device, verify=True)
    expected = np.repeat(fold(x.astype(np.float64), axis=1)[:, None], 64, axis=1)
    np.testing.assert_allclose(result.outputs[0], expected, rtol=0.01)
    assert len(result.executes) == (1 if element == "f16" else 2)


CLIPPED = """func.func @clipped(%x: index, %y: index) attributes {grid = [2]} {
  %zero = arith.constant 0 : index
  %step = arith.constant 57 : index
  %n = arith.constant 100 : index
  %tile = ktdp.get_compute_tile_id : index
  %row = arith.muli %tile, %step : index
  %v = ktdp.construct_memory_view %x, sizes: [2, 64, 40], strides: [2560, 40, 1] {
    memory_space = #ktdp.memory_space<global>} : memref<2x64x40xf16>
  %w = ktdp.construct_memory_view %y, sizes: [%n, 40], strides: [40, 1] {
    memory_space = #ktdp.memory_space<global>} : memref<?x40xf16>
  %s = ktdp.construct_access_tile %v[%tile, %zero, %zero] {access_tile_set =
    affine_set<(a, b, c) : (a == 0, b >= 0, -b + 63 >= 0, c >= 0, -c + 39 >= 0)>}
    : memref<2x64x40xf16> -> !ktdp.access_tile<1x64x40xindex>
  %t = ktdp.construct_access_tile %w[%row, %zero] {access_tile_set =
    affine_set<(a, b) : (a >= 0, -a + 63 >= 0, b >= 0, -b + 39 >= 0)>}
    : memref<?x40xf16> -> !ktdp.access_tile<64x40xindex>
  %a = ktdp.load %s : !ktdp.access_tile<1x64x40xindex> -> tensor<1x64x40xf16>
  %b = tensor.collapse_shape %a [[0, 1], [2]] : tensor<1x64x40xf16> into tensor<64x40xf16>
  ktdp.store %b, %t : tensor<64x40xf16>, !ktdp.access_tile<64x40xindex>
  return
}
"""


def test_of_tiles_that_overlap_the_last_one_stores(device):
    """As if they ran one after another; the sanitizer reports the race."""
    x = halves(2, 64, 40)
    given = {"x": x, "y": np.zeros((100, 40), np.float16)}
    (found,) = run(CLIPPED, given, device).outputs
    np.testing.assert_array_equal(found, np.concatenate([x[0, :57], x[1, :43]]))


JOINED = """func.func @joined() {
  %from = arith.constant AT : index
  %to = arith.constant 256 : index
  %zero = arith.constant 0 : index
  %v = ktdp.construct_memory_view %from, sizes: [64], strides: [1] {
    memory_space = #ktdp.memory_space<global>} : memref<64xi32>
  %w = ktdp.construct_memory_view %to, sizes: [64], strides: [1] {
    memory_space = #ktdp.memory_space<global>} : memref<64xi32>
  %s = ktdp.construct_access_tile %v[%zero] {access_tile_set =
    affine_set<(a) : (a >= 0, -a + 63 >= 0)>} : memref<64xi32> -> !ktdp.access_tile<64xindex>
  %t = ktdp.construct_access_tile %w[%zero] {access_tile_set =
    affine_set<(a) : (a >= 0, -a + 63 >= 0)>} : memref<64xi32> -> !ktdp.access_tile<64xindex>
  %a = ktdp.load %s : !ktdp.access_tile<64xindex> -> tensor<64xi32>
  ktdp.store %a, %t : tensor<64xi32>, !ktdp.access_tile<64xindex>
  return
}
"""


@pytest.mark.parametrize(("pitch", "codes"), [(32, ["SPY711"]), (96, [])])
def test_elements_within_sticks_that_two_tiles_write(pitch, codes):
    text = of_tile("%r = arith.addf %a, %a : tensor<1x64xf16>").replace(
        "%y, sizes: [4, 64], strides: [64, 1]", f"%y, sizes: [4, 64], strides: [{pitch}, 1]"
    )
    device = Device("ieee", 1, sanitize="race")
    result = run(text, {"x": halves(4, 64), "y": halves(8, 64), "n": 0}, device)
    assert [finding.code for finding in result.findings] == codes
    for finding in result.findings:
        assert "32 elements" in str(finding)
        assert "last written by core 0" in str(finding)
        assert ".ktir:" in str(finding)


def test_a_view_of_places_that_follow_each_other():
    """It reads their bytes, whatever their elements are; of one place alone they are checked."""
    x, numbers = halves(64), np.arange(40, dtype=np.int32)
    given = {"@0x80": numbers, "@0": x, "@0x400": np.zeros(64, np.int32), "@0x120": halves(8)}
    result = run(JOINED.replace("AT", "0"), given, Device("ieee", 1), verify=True)
    found = {t.name: v for t, v in zip(result.output_tensors, result.outputs, strict=True)}
    np.testing.assert_array_equal(found["@0x400"][:32], x.view(np.int32))
    np.testing.assert_array_equal(found["@0x400"][32:], numbers[:32])
    np.testing.assert_array_equal(found["@0"], x.astype(np.float32))
    np.testing.assert_array_equal(found["@0x80"], numbers)
    with pytest.raises(LaunchError, match="SPY343"):
        run(JOINED.replace("AT", "9"), given, Device("ieee", 1))
    given["@0"] = halves(128)
    with pytest.raises(LaunchError, match="SPY344"):
        run(JOINED.replace("AT", "0"), given, Device("ieee", 1))


def test_a_text_read_later_is_traced_anew(device):
    """A kept trace keeps its text's tree, so that no other tree has the identity in its key."""
    text = (EXAMPLES / "add.ktir").read_text()
    given = {"x": halves(4096), "y": halves(4096)}
    for _ in range(4):
        program = load_ktir(text)
        spyre.run(program, given, device=device)
        module = program.module
        del program
        gc.collect()
        assert sys.getrefcount(module) > 2, "of the name above and of the call"
        wrong = load_ktir(text.replace("constant 512 ", "constant 520 "))
        with pytest.raises(DeviceFault, match="SPY414"):
            spyre.run(wrong, given, device=device)


def of_tile(body, element="f16", tiles=4):
    """A program of rows: %a is this tile's row of %x, %r goes to its row of %y."""
    box = "affine_set<(a, b) : (a == 0, b >= 0, -b + 63 >= 0)>"
    lines = ["%zero = arith.constant 0 : index", "%tile = ktdp.get_compute_tile_id : index"]
    for name in ("x", "y"):
        lines += [
            f"%v{name} = ktdp.construct_memory_view %{name}, sizes: [{tiles}, 64], strides: "
            f"[64, 1] {{memory_space = #ktdp.memory_space<global>}} : memref<{tiles}x64x{element}>",
            f"%t{name} = ktdp.construct_access_tile %v{name}[%tile, %zero] {{access_tile_set = "
            f"{box}}} : memref<{tiles}x64x{element}> -> !ktdp.access_tile<1x64xindex>",
        ]
    lines += [
        f"%a = ktdp.load %tx : !ktdp.access_tile<1x64xindex> -> tensor<1x64x{element}>",
        *body.strip().splitlines(),
        f"ktdp.store %r, %ty : tensor<1x64x{element}>, !ktdp.access_tile<1x64xindex>",
        "return",
    ]
    text = "\n  ".join(lines)
    grid = f"attributes {{grid = [{tiles}]}}"
    return f"func.func @f(%x: index, %y: index, %n: index) {grid} {{\n  {text}\n}}\n"


def test_a_pointer_carried_in_a_loop(device):
    """Numbers of a loop are known when it is traced: they may be indices."""
    text = of_tile("""
  %one = arith.constant 1 : index
  %k = scf.for %i = %zero to %n step %one iter_args(%s = %zero) -> (index) {
    %u = arith.addi %s, %i : index
    scf.yield %u : index
  }
  %v = tensor.extract %a[%zero, %k] : tensor<1x64xf16>
  %r = tensor.splat %v : tensor<1x64xf16>""")
    x = halves(4, 64)
    (found,) = run(text, {"x": x, "n": 5}, device, verify=True).outputs
    np.testing.assert_array_equal(found, np.repeat(x[:, 10:11], 64, axis=1).astype(np.float32))
    with pytest.raises(DeviceFault, match="SPY414"):
        run(text, {"x": x, "n": 20}, device)


def test_a_float_carried_in_a_loop_that_depends_on_data(device):
    text = of_tile("""
  %one = arith.constant 1 : index
  %none = arith.constant 0.0 : f16
  %k = scf.for %i = %zero to %n step %one iter_args(%s = %none) -> (f16) {
    %v = tensor.extract %a[%zero, %i] : tensor<1x64xf16>
    %u = arith.maximumf %s, %v : f16
    scf.yield %u : f16
  }
  %r = tensor.splat %k : tensor<1x64xf16>""")
    x = halves(4, 64)
    (found,) = run(text, {"x": x, "n": 8}, device, verify=True).outputs
    np.testing.assert_array_equal(found[:, 0], np.maximum(x[:, :8].max(axis=1), 0))


def test_a_name_used_again_inside_of_a_loop(device):
    """The operation inside does not write where the one of that name outside does."""
    text = of_tile("""
  %one = arith.constant 1 : index
  %r = scf.for %i = %zero to %n step %one iter_args(%acc = %a) -> (tensor<1x64xf16>) {
    %q = scf.for %j = %zero to %one step %one iter_args(%b = %a) -> (tensor<1x64xf16>) {
      %s = arith.mulf %a, %a : tensor<1x64xf16>
      %t = arith.addf %s, %b : tensor<1x64xf16>
      scf.yield %t : tensor<1x64xf16>
    }
    %s = arith.addf %acc, %q : tensor<1x64xf16>
    scf.yield %s : tensor<1x64xf16>
  }""")
    x = np.arange(256).reshape(4, 64).astype(np.float16) % 8 / 4
    (found,) = run(text, {"x": x, "n": 3}, device, verify=True).outputs
    np.testing.assert_array_equal(found, x + 3 * (x * x + x))


def test_sticks_rearranged_by_linear_maps(device):
    text = of_tile("""
  %e = tensor.empty() : tensor<8x8xf16>
  %b = linalg.generic {indexing_maps = [affine_map<(i, j) -> (0, i * 8 + j)>,
    affine_map<(i, j) -> (j, i)>], iterator_types = ["parallel", "parallel"]}
    ins(%a : tensor<1x64xf16>) outs(%e : tensor<8x8xf16>) {
    ^bb0(%p: f16, %q: f16):
      linalg.yield %p : f16
  } -> tensor<8x8xf16>
  %c = tensor.collapse_shape %b [[0, 1]] : tensor<8x8xf16> into tensor<64xf16>
  %r = tensor.expand_shape %c [[0, 1]] output_shape [1, 64] : tensor<64xf16> into
    tensor<1x64xf16>""")
    x = halves(4, 64)
    (found,) = run(text, {"x": x, "n": 0}, device, verify=True).outputs
    np.testing.assert_array_equal(found, x.reshape(4, 8, 8).transpose(0, 2, 1).reshape(4, 64))


def test_a_ragged_product_in_chunks():
    """Chunks are whole sticks: operands are filled up with zeros."""
    text = of_tile("""
  %b = tensor.extract_slice %a[0, 0] [1, 40] [1, 1] : tensor<1x64xf16> to tensor<1x40xf16>
  %e = tensor.empty() : tensor<40x1xf16>
  %t = linalg.transpose ins(%b : tensor<1x40xf16>) outs(%e : tensor<40x1xf16>) permutation = [1, 0]
  %z = tensor.empty() : tensor<1x1xf16>
  %p = linalg.matmul ins(%b, %t : tensor<1x40xf16>, tensor<40x1xf16>)
    outs(%z : tensor<1x1xf16>) -> tensor<1x1xf16>
  %v = tensor.extract %p[%zero, %zero] : tensor<1x1xf16>
  %r = tensor.splat %v : tensor<1x64xf16>""")
    x, device = halves(4, 64), Device("dl16-chunk", 1)
    (found,) = run(text, {"x": x, "n": 0}, device, verify=True).outputs
    wanted = (x[:, :40].astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(found[:, 0], wanted, rtol=0.02)


@pytest.mark.parametrize("mode", ["dl16", "ieee"])
def test_bits_of_integers_and_of_floats(mode):
    text = of_tile(
        """
  %f = arith.bitcast %a : tensor<1x64xi32> to tensor<1x64xf32>
  %b = arith.bitcast %f : tensor<1x64xf32> to tensor<1x64xi32>
  %c = arith.cmpi slt, %b, %a : tensor<1x64xi32>
  %m = arith.constant dense<-1> : tensor<1x64xi32>
  %o = arith.maxsi %b, %m : tensor<1x64xi32>
  %r = arith.select %c, %m, %o : tensor<1x64xi1>, tensor<1x64xi32>""",
        element="i32",
    )
    x = np.random.default_rng(0).integers(-(2**31), 2**31, (4, 64)).astype(np.int32)
    (found,) = run(text, {"x": x, "n": 0}, Device(mode, 1), verify=True).outputs
    np.testing.assert_array_equal(found, np.maximum(x, -1))


def test_integers_of_more_than_32_bits(device):
    text = of_tile("%r = arith.addi %a, %a : tensor<1x64xi64>", element="i64")
    x = np.arange(256).reshape(4, 64)
    np.testing.assert_array_equal(run(text, {"x": x, "n": 0}, device).outputs[0], 2 * x)
    with pytest.raises(LaunchError, match="SPY344"):
        run(text, {"x": x + 2**40, "n": 0}, device)


def test_a_delivered_value_that_others_use(device):
    text = DELIVERY.replace("(i - 2 * g >= 0, -i + 2 * g + 1 >= 0)>,", "(i - 2 * g == 0)>,")
    with pytest.raises(LaunchError, match="SPY190") as raised:
        run(text, {"x": halves(4, 64)}, device)
    assert raised.value.location is not None


def test_a_scratchpad_of_no_tile(device):
    text = of_tile("%r = arith.addf %a, %a : tensor<1x64xf16>").replace(
        "%r =",
        "%w = ktdp.construct_memory_view %zero, sizes: [64], strides: [1] {\n"
        "memory_space = #ktdp.memory_space<ct_local, ct_id = 4>} : memref<64xf16>\n  %r =",
    )
    with pytest.raises(LaunchError, match="SPY187"):
        run(text, {"x": halves(4, 64), "n": 0}, device)


PREDICATES = {
    "one": lambda x: (x < 1) | (x > 1), "ueq": lambda x: (x == 1) | np.isnan(x),
    "ugt": lambda x: ~(x <= 1), "uge": lambda x: ~(x < 1), "ult": lambda x: ~(x >= 1),
    "ule": lambda x: ~(x > 1), "olt": lambda x: x < 1, "une": lambda x: x != 1,
    "ord": lambda x: ~np.isnan(x), "uno": np.isnan,
}  # fmt: skip


@pytest.mark.parametrize("predicate", PREDICATES)
def test_comparisons_with_nan(predicate):
    text = of_tile(f"""
  %one = arith.constant dense<1.0> : tensor<1x64xf16>
  %m = arith.cmpf {predicate}, %a, %one : tensor<1x64xf16>
  %zero16 = arith.constant dense<0.0> : tensor<1x64xf16>
  %r = arith.select %m, %one, %zero16 : tensor<1x64xi1>, tensor<1x64xf16>""")
    x = np.tile(np.array([0.5, 1, 2, np.nan], np.float16), (4, 16))
    (found,) = run(text, {"x": x, "n": 0}, Device("ieee", 1), verify=True).outputs
    np.testing.assert_array_equal(found, PREDICATES[predicate](x.astype(np.float32)))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%c = tensor.extract %a[%zero, %zero] : tensor<1x64xf16>\n"
         "%k = arith.constant 0.0 : f16\n%m = arith.cmpf ogt, %c, %k : f16\n"
         "%b = arith.negf %a : tensor<1x64xf16>\n"
         "%r = arith.select %m, %a, %b : tensor<1x64xf16>",
         lambda x: np.where(x[:, :1] > 0, x, -x)),
        ("scf.for %i = %zero to %n step %n {\n}\n%r = arith.negf %a : tensor<1x64xf16>",
         lambda x: -x),
        ("%k = arith.constant 3.40282347E+38 : f32\n%l = arith.truncf %k : f32 to f16\n"
         "%s = tensor.splat %l : tensor<1x64xf16>\n"
         "%r = arith.minimumf %s, %a : tensor<1x64xf16>", lambda x: x),
        (f'%k = arith.constant dense<"0x{np.arange(64, dtype=np.float16).tobytes().hex()}"> : '
         "tensor<1x64xf16>\n%r = arith.addf %a, %k : tensor<1x64xf16>",
         lambda x: (x.astype(np.float32) + np.arange(64)).astype(np.float16)),
        ("%e = tensor.empty() : tensor<1x64xf16>\n%r = linalg.square ins(%a : tensor<1x64xf16>) "
         "outs(%e : tensor<1x64xf16>) -> tensor<1x64xf16>",
         lambda x: (x.astype(np.float32) ** 2).astype(np.float16)),
        ("%k = arith.constant dense<0.0> : tensor<1x64xf16>\n%b = arith.negf %a : tensor<1x64xf16>"
         "\n%m = arith.cmpf olt, %a, %k : tensor<1x64xf16>\n%e = tensor.empty() : "
         "tensor<1x64xf16>\n%r = linalg.select ins(%m, %b, %a : tensor<1x64xi1>, "
         "tensor<1x64xf16>, tensor<1x64xf16>) outs(%e : tensor<1x64xf16>) -> tensor<1x64xf16>",
         np.abs),
        ("%c = arith.constant 0 : i32\n%d = arith.constant 2 : i32\n%s = arith.constant 1 : i32\n"
         "%r = scf.for unsigned %i = %c to %d step %s iter_args(%t = %a) -> (tensor<1x64xf16>) : "
         "i32 {\n%u = arith.negf %t : tensor<1x64xf16>\nscf.yield %u : tensor<1x64xf16>\n}",
         lambda x: x),
    ],
)  # fmt: skip
def test_further_forms(body, expected):
    x = halves(4, 64)
    (found,) = run(of_tile(body), {"x": x, "n": 1}, Device("ieee", 1), verify=True).outputs
    np.testing.assert_array_equal(found, expected(x))


INTRINSICS = """#m = affine_map<(i, j) -> (i, j)>
""" + of_tile("""
  %e = tensor.empty() : tensor<1x64xf16>
  %r = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}
    ins(%a : tensor<1x64xf16>) outs(%e : tensor<1x64xf16>) {
    ^bb0(%p: f16, %q: f16):
      %two = arith.constant 2.0 : f16
      BODY
      linalg.yield %v : f16
  } -> tensor<1x64xf16>""")  # fmt: skip


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%c = spyreop.compare <lesserthan> %p, %two : f16\n"
         "%v = spyreop.select %c, %p, %two : f16", lambda x: np.minimum(x, 2)),
        ("%s = arith.mulf %p, %p : f16\n%t = arith.addf %s, %two : f16\n"
         "%v = spyreop.layernormscale %p squares %t : f16", lambda x: 0 * x + 2**-0.5),
        ("%v = spyreop.layernormnorm %p squares %two scale %p weight %two bias %two : f16",
         lambda x: (x - 2) * x * 2 + 2),
    ],
)  # fmt: skip
def test_intrinsics(device, body, expected):
    x = halves(4, 64)
    text = INTRINSICS.replace("BODY", body)
    (found,) = run(text, {"x": x, "n": 0}, device, verify=True).outputs
    np.testing.assert_allclose(found, expected(x.astype(np.float32)), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("mode", ["dl16", "ieee"])
def test_masks_in_memory(mode):
    x, device = np.random.default_rng(0).random((4, 64)) < 0.5, Device(mode, 1)
    negated = "%k = arith.constant dense<true> : tensor<1x64xi1>\n%r = arith.xori %a, %k : "
    (found,) = run(
        of_tile(negated + "tensor<1x64xi1>", "i1"), {"x": x, "n": 0}, device, verify=True
    ).outputs
    np.testing.assert_array_equal(found, ~x)


def test_arguments_that_nothing_uses(device):
    """An index without use takes an array too; a fraction is no index."""
    x = halves(4, 64)
    text = of_tile("%r = arith.negf %a : tensor<1x64xf16>")
    (found,) = run(text, {"x": x, "n": x}, device).outputs
    np.testing.assert_array_equal(found, -x)
    text = of_tile("scf.for %i = %zero to %n step %n {\n}\n%r = arith.negf %a : tensor<1x64xf16>")
    with pytest.raises(LaunchError, match="SPY342"):
        run(text, {"x": x, "n": 1.5}, device)


@pytest.mark.parametrize("rows", [64, 128])
def test_numbers_of_rows_that_fill_sticks(device, rows):
    """A row's number is alone in its stick: it is not computed into the sticks of the output."""
    text = f"""func.func @f(%x: index, %y: index) {{
  %zero = arith.constant 0 : index
  %v = ktdp.construct_memory_view %x, sizes: [{rows}, 64], strides: [64, 1] {{
    memory_space = #ktdp.memory_space<global>}} : memref<{rows}x64xf16>
  %w = ktdp.construct_memory_view %y, sizes: [{rows}], strides: [1] {{
    memory_space = #ktdp.memory_space<global>}} : memref<{rows}xf16>
  %s = ktdp.construct_access_tile %v[%zero, %zero] {{access_tile_set =
    affine_set<(a, b) : (a >= 0, -a + {rows - 1} >= 0, b >= 0, -b + 63 >= 0)>}}
    : memref<{rows}x64xf16> -> !ktdp.access_tile<{rows}x64xindex>
  %t = ktdp.construct_access_tile %w[%zero] {{access_tile_set =
    affine_set<(a) : (a >= 0, -a + {rows - 1} >= 0)>}}
    : memref<{rows}xf16> -> !ktdp.access_tile<{rows}xindex>
  %a = ktdp.load %s : !ktdp.access_tile<{rows}x64xindex> -> tensor<{rows}x64xf16>
  %e = tensor.empty() : tensor<{rows}xf16>
  %b = linalg.reduce {{ arith.maximumf }} ins(%a : tensor<{rows}x64xf16>)
    outs(%e : tensor<{rows}xf16>) dimensions = [1]
  %c = arith.negf %b : tensor<{rows}xf16>
  ktdp.store %c, %t : tensor<{rows}xf16>, !ktdp.access_tile<{rows}xindex>
  return
}}
"""
    x = halves(rows, 64)
    (found,) = run(text, {"x": x}, device, verify=True).outputs
    np.testing.assert_array_equal(found, -x.max(axis=1))
