"""Bundles of specs: loops, addresses, the three forms of one kernel, and what cannot be said."""

from __future__ import annotations

import re

import pytest
import sympy
import torch
from msgspec.structs import replace

import spyre
from spyre.errors import UnsupportedError
from spyre.hw.device.device import Device
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.mlir.operation.operation import footprint
from spyre.mlir.sdsc.reader import read_operation
from spyre.mlir.text.printer import print_module
from spyre.torch_backend.inductor.bundles.generation import KernelMemory, generate_bundle, unroll
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel, launch_spec_files
from spyre.torch_backend.tensors.allocation import buffer_of
from tests.torch_backend.inductor.bundles.op_spec_reader import kernel_of
from tests.torch_backend.inductor.bundles.spec_cases import (
    MATRIX,
    arg,
    default_arg as tensor,
    loop,
    op,
    tiled_example,
)
from tests.torch_backend.inductor.kernel_cases import CASES, MERGED, PADDED, ROWS, matmul, through

STICKS = ("floor(c0/64)", "Mod(c0, 64)")
SMALL = (128, 512)
SMALL_TILES = {"rows": 2, "columns": 4, "full": SMALL}


def written(parts, place, specs=None, tensors=None, symbolic=True):
    """The directory of a bundle, with launch_spec.json if tensors are given."""
    if tensors is not None:
        found = [buffer_of(t).base for t in tensors]
        files = launch_spec_files("kernel", KernelMemory.of(kernel_of(specs)), found, symbolic)
        parts = replace(parts, extra_files=files)
    return write_bundle(parts, place)


def run_sanitized(directory):
    assert load_bundle(directory).check() == ()
    return spyre.run(directory, device=Device(threads=1, sanitize=True, poison=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_compute_what_eager_operations_do(case, tmp_path):
    inputs, output = case.inputs(), case.empty()
    InductorKernel("kernel", kernel_of(case.specs)).run(*inputs, output)
    expected = case.expected(*inputs)
    assert torch.equal(output.cpu(), expected.cpu().reshape(case.output))
    parts = generate_bundle("kernel", kernel_of(case.specs))
    result = run_sanitized(written(parts, tmp_path, case.specs, [*inputs, output]))
    assert result.findings == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_baked_kernels_run_on_their_own(case, tmp_path):
    inputs, output = case.inputs(), case.empty()
    parts = generate_bundle("kernel", kernel_of(case.specs), symbolic=False)
    assert not parts.module.function.parameters
    directory = written(parts, tmp_path, case.specs, [*inputs, output], symbolic=False)
    assert load_bundle(directory).check() == ()
    device = Device(threads=1, sanitize=True)
    arrays = [x.cpu().numpy() for x in inputs]
    result = spyre.run(directory, arrays, device=device)
    assert result.findings == ()
    found = torch.from_numpy(result.outputs[-1].copy())
    assert torch.equal(found.to(case.dtype), case.expected(*inputs).cpu().reshape(case.output))


def test_loops_of_the_documents_example():
    module = generate_bundle("kernel", kernel_of(tiled_example()))
    text = print_module(module.module)
    maps = re.findall(r"affine_map<(.*)>", text)
    assert len(maps) == 1
    assert "65536" in maps[0]
    assert "2097152" in maps[0]
    assert len(re.findall(r"scf\.for", text)) == 2
    assert text.count("sdsc_execute") == 2
    assert re.search(r"affine\.apply #map_0\(%i_0, %i_1\)", text)
    assert len(module.sdscs) == 2
    assert [p.name for p in module.module.function.parameters] == [
        f"arg_{k}_base_addr" for k in range(4)
    ]


def forms():
    """The example in small: loops, unrolled, untiled."""
    tiled = tiled_example(cores=16, **SMALL_TILES)
    whole = tiled_example(1, 1, cores=16, full=SMALL)
    return {
        "loops": InductorKernel("loops", kernel_of(tiled)),
        "unrolled": InductorKernel("unrolled", kernel_of(tiled), unrolled=True),
        "untiled": InductorKernel("untiled", kernel_of(whole)),
    }


def test_all_forms_give_the_same_bits():
    torch.manual_seed(0)
    a, b, c = (torch.randn(SMALL).half().to("spyre") for _ in range(3))
    expected = ((a + b) * c).cpu()
    for name, kernel in forms().items():
        z = torch.zeros(SMALL).half().to("spyre")
        kernel.run(a, b, c, z)
        assert torch.equal(z.cpu(), expected), name


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize("unrolled", [True, False])
def test_forms_are_clean_and_keep_y_in_lx(tmp_path, symbolic, unrolled):
    specs = tiled_example(cores=16, **SMALL_TILES)
    parts = generate_bundle("kernel", kernel_of(specs), symbolic=symbolic, unrolled=unrolled)
    assert len(parts.sdscs) == (2 if symbolic and not unrolled else 16)
    tensors = [torch.zeros(SMALL).half().to("spyre") for _ in range(4)]
    result = run_sanitized(written(parts, tmp_path, specs, tensors, symbolic))
    assert result.findings == ()
    size_bytes = SMALL[0] * SMALL[1] * 2
    counters = result.counters
    assert counters.hbm_read_bytes == 3 * size_bytes
    assert counters.hbm_written_bytes == size_bytes
    assert counters.lx_read_bytes == counters.lx_written_bytes == size_bytes


def test_unrolled_operations_stand_at_their_tiles():
    flat = unroll(kernel_of(tiled_example(**SMALL_TILES)))
    assert [op.name for op in flat] == ["add", "mul"] * 8
    assert not any(tensor.strides for op in flat for tensor in op.tensors)
    places = [(op.output.memory, op.output.start_bytes) for op in flat]
    rows, columns = 64 * 128, 2 * 128 * 128
    expected = [i * rows + j * columns for i in range(2) for j in range(4)]
    assert places[1::2] == [("hbm", address) for address in expected]
    assert places[::2] == [("lx", 0)] * 8


def test_unrolling_leaves_fixed_tensors_alone():
    fixed = arg(0, [8, 64], ("c0", "0"), per_tile_fixed=True)
    moved = arg(1, [24, 64], ("c0", "0"), out=True)
    looped = kernel_of([loop(3, op("neg", {"c0": (8, 1)}, [fixed, moved], tiled=["c0"]))])
    flat = unroll(looped)
    assert [op.tensors[0].start_bytes for op in flat] == [0] * 3
    assert [op.tensors[1].start_bytes for op in flat] == [0, 1024, 2048]


def test_allocations_count_within_their_segment():
    at = (3 << 34) + 256
    specs = [
        op(
            "neg",
            {"c0": (8, 1)},
            [
                arg(0, [8, 64], ("c0", "0")),
                arg(1, [10, 64], ("c0", "0"), out=True, place={"hbm": at}),
            ],
        )
    ]
    text = print_module(generate_bundle("kernel", kernel_of(specs)).module)
    assert "%arg_1_core_256" in text


def code_of(specs):
    with pytest.raises(UnsupportedError) as caught:
        generate_bundle("kernel", kernel_of(specs))
    return caught.value.code, str(caught.value)


def padded(space=PADDED, name="neg", **more):
    shape = (100, 150)
    args = [tensor(0, shape, ROWS), tensor(1, shape, ROWS, out=True)]
    return [op(name, space, args, **more)]


@pytest.mark.parametrize(
    "specs",
    [
        padded({"c0": (100, 3), "c1": (150, 1)}),
        padded({"c0": (100, 1), "c1": (150, 2)}),
        padded({"c0": (100, 25), "c1": (150, 3)}),
        padded({"c0": (100, 1), "c1": (150, 1), "c2": (1, 2)}),
        matmul((1, 1, 3)),
    ],
    ids=["rows", "sticks", "cores", "one element", "K"],
)
def test_divisions_that_do_not_fit(specs):
    code, text = code_of(specs)
    assert code == "SPY961"
    assert "neg: " in text or "batchmatmul: " in text


def test_reduced_dims_are_not_divided():
    source = tensor(0, (128, 64), ROWS)
    for space in ({"c0": (128, 1), "c1": (64, 1)}, {"c0": (128, 2), "c1": (64, 1)}):
        specs = [op("sum", space, [source, tensor(1, (64,), ("c1",), out=True)], reduces=True)]
        if space["c0"][1] == 1:
            generate_bundle("kernel", kernel_of(specs))
        else:
            assert code_of(specs)[0] == "SPY961"


def test_tensors_in_lx_are_divided_alike():
    first, second = through({"lx": 0})
    generate_bundle("kernel", kernel_of([first, second]))
    other = {s: (n, 1) for s, (n, _) in second.iteration_space.items()}
    code, text = code_of([first, replace(second, iteration_space=other)])
    assert code == "SPY961"
    assert "tensor 0 (lx 0)" in text


def test_slices_in_lx_are_packed():
    parts = generate_bundle("kernel", kernel_of(through({"lx": 1280}, cores=4)))
    for sdsc, side in zip(parts.sdscs.values(), ("outputs", "inputs"), strict=True):
        operation = read_operation(sdsc, "sdsc.json")
        (tensor_in_lx,) = getattr(operation, side)
        assert tensor_in_lx.starts == (1280,) * 8
        assert footprint(operation, tensor_in_lx).allocation_bytes == 256 * 512 * 2 // 8


def test_cores_count_the_pieces_of_a_symbol_in_its_order():
    """The rows of a cube, seen as one dim, are shared like those of a matrix."""
    shape, space = (240, 256), {"c0": (240, 12), "c1": (256, 1)}
    cube = arg(0, [40, 2, 2, 6, 64], MERGED)
    middle = {"place": {"lx": 0}}
    specs = [
        op("neg", space, [cube, tensor(-1, shape, ROWS, out=True, **middle)]),
        op("abs", space, [tensor(-1, shape, ROWS, **middle), tensor(1, shape, ROWS, out=True)]),
    ]
    torch.manual_seed(4)
    x, y = torch.randn(6, 40, 2, 128).half().to("spyre"), torch.zeros(shape).half().to("spyre")
    InductorKernel("kernel", kernel_of(specs)).run(x, y)
    assert torch.equal(y.cpu(), x.cpu().abs().reshape(shape))


def test_a_gap_along_a_divided_dim_of_lx():
    args = [
        arg(0, [8, 64], ("c0", "0")),
        arg(-1, [4, 10, 64], ("c1", "c0", "0"), out=True, place={"lx": 0}),
    ]
    specs = [op("neg", {"c1": (4, 1), "c0": (8, 2)}, args)]
    assert code_of(specs)[0] == "SPY961"


def test_symbolic_counts():
    body = tiled_example(**SMALL_TILES)[0].body
    code, text = code_of([replace(tiled_example()[0], count=sympy.Symbol("s0"), body=body)])
    assert code == "SPY964"
    assert "loop count of s0" in text
    with pytest.raises(UnsupportedError, match="SPY964"):
        unroll(kernel_of([loop("s0", *body)]))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"memory": "lx", "argument": -1, "offset_bytes": 128}, "from byte 128 on"),
        ({"memory": "hbm", "argument": -1}, "hbm 0"),
    ],
    ids=["within LX", "no argument"],
)
def test_memory_that_no_address_names(place, message):
    (negation,) = kernel_of(padded())
    source = replace(negation.tensors[0], **place)
    with pytest.raises(UnsupportedError, match="SPY960") as caught:
        generate_bundle("kernel", [replace(negation, tensors=(source, negation.output))])
    assert message in str(caught.value)


def test_sticks_along_different_symbols():
    args = [tensor(0, (128, 128), ROWS), tensor(1, (128, 128), ROWS[::-1], out=True)]
    code, text = code_of([op("neg", {"c0": (128, 1), "c1": (128, 1)}, args)])
    assert code == "SPY960"
    assert "sticks" in text


def test_elements_in_sticks_of_their_own_are_not_those_of_a_stick():
    """The input has one element per stick along what the output has in one."""
    source, target = arg(0, [128, 64], ("c0", "0")), arg(1, [2, 64], STICKS, out=True)
    code, text = code_of([op("neg", {"c0": (128, 1)}, [source, target])])
    assert code == "SPY960"
    assert "operand 0 has no sticks along those of the operation" in text


def test_whole_sticks_beyond_the_buffer():
    shape = (100, 150)
    args = [tensor(0, shape, ROWS), tensor(1, shape, ROWS, dtype="float32", out=True)]
    code, text = code_of([op("dl16tofp32", PADDED, args)])
    assert code == "SPY960"
    assert "76800 bytes, in whole sticks, of a buffer of 64000" in text


def test_masks_and_parts():
    """A part of the output is written; a mask leaves lanes out."""
    half = [arg(0, [2, 8, 64], MATRIX), arg(1, [4, 8, 64], MATRIX, out=True)]
    one = arg(2, [1, 64], ("0", "0"))
    space = {"c0": (8, 1), "c1": (128, 1)}
    specs = [
        op("identity", space, half, info={"part": (1, 128, 128)}),
        op("mul", space, [half[0], one, half[1]], info={"mask_from": 100}),
    ]
    torch.manual_seed(2)
    x, y = torch.randn(8, 128).half().to("spyre"), torch.zeros(8, 256).half().to("spyre")
    InductorKernel("parts", kernel_of(specs)).run(x, y, torch.ones(1).half().to("spyre"))
    expected = torch.cat([x.cpu(), x.cpu()], 1)
    expected[:, 100:128] = 0
    assert torch.equal(y.cpu(), expected)
    assert code_of([op("identity", space, half, info={"part": (1, 32, 128)})])[0] == "SPY960"


def test_constants():
    bits = 0x3F800000
    specs = padded(name="clip", info={"constants": {"clipMin": 0, "clipMax": bits}})
    torch.manual_seed(3)
    x, y = torch.randn(100, 150).half().to("spyre"), torch.zeros(100, 150).half().to("spyre")
    InductorKernel("clip", kernel_of(specs)).run(x, y)
    assert torch.equal(y.cpu(), x.clamp(0, 1).cpu())


def test_arguments_and_pool():
    memory = KernelMemory.of(kernel_of(through({"pool": 4096})))
    assert memory.pool_bytes == 4096 + 256 * 512 * 2
    source, target = memory.arguments
    assert (source.is_input, source.is_output) == (True, False)
    assert (target.is_input, target.is_output) == (False, True)
    assert KernelMemory.of([]).arguments == ()
