"""Kernels for tensors of any size: one bundle, loop counts and pitches by the launch."""

from __future__ import annotations

import pytest
import sympy
import torch
from msgspec.structs import replace

import spyre
from spyre.errors import LaunchError, SpyreError, UnsupportedError
from spyre.hw.device.device import Device
from spyre.mlir.bundle import load_bundle
from spyre.mlir.text.printer import print_module
from spyre.torch_backend.inductor.bundles.generation import generate_bundle
from spyre.torch_backend.inductor.bundles.kernel_op import SizeSpec
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel, SpyreAsyncCompile
from spyre.torch_backend.inductor.bundles.op_spec_form import (
    LoopSpec,
    OpSpec,
    TensorArg,
    spec_text,
)
from tests.torch_backend.inductor.bundles.op_spec_reader import kernel_of
from tests.torch_backend.inductor.bundles.spec_cases import DATA_FORMATS, arg, loop, op

SIZES = (SizeSpec("s0", ((0, 0), (1, 0))),)
NAMES = ("s0", "s1")
EXTENTS = [(("s0", 128), (128, 1), "float16")] * 3


def rows_of(index, tile, begin, out):
    """Rows of a [s0, 128] tensor: c1 goes along column sticks, c2 counts tiles."""
    at = ["floor(c1/64)", f"c0 + {tile}*c2 + {begin}", "Mod(c1, 64)"]
    size = [1, tile, 64]
    within = [2, sympy.Symbol("s0"), 64]
    return arg(index, size, at, out=out, place={"hbm": index << 34}, within=within)


def tiles(tile, cores, count, begin="0"):
    """c = a + b over ``count`` tiles of ``tile`` rows, a column stick at a time."""
    space = {"c0": (tile, cores), "c1": (64, 1), "c2": (1, 1)}
    args = [rows_of(k, tile, begin, k == 2) for k in range(3)]
    return loop(count, loop(2, op("add", space, args, tiled=("c2", "c1"))))


def any_rows():
    """Tiles of 64 rows, and the rest row by row."""
    return [tiles(64, 32, "floor(s0/64)"), tiles(1, 1, "Mod(s0, 64)", "64*floor(s0/64)")]


def tensors(*rows):
    made = [torch.randn(n, 128).half().to("spyre") for n in rows]
    return [*made, torch.zeros(rows[0], 128, dtype=torch.float16, device="spyre")]


def compiled(specs, sizes=SIZES):
    return SpyreAsyncCompile().sdsc("add", kernel_of(specs, NAMES), arguments=EXTENTS, sizes=sizes)


def test_one_bundle_takes_tensors_of_any_size():
    kernel = compiled(any_rows())
    for rows in (64, 1, 200, 7, 128, 65):
        a, b, found = tensors(rows, rows)
        kernel.run(a, b, found)
        assert torch.equal(found.cpu(), (a + b).cpu())
        again = torch.zeros_like(found)
        kernel.run(a, b, again, rows)
        assert torch.equal(again.cpu(), found.cpu())
    assert len(kernel._programs) == 1


def at_rows(specs, rows):
    """The specs with a number in place of the size, without loops that never run."""
    found = []
    for spec in specs:
        if isinstance(spec, LoopSpec):
            count = spec.count.subs({"s0": rows})
            found += [replace(spec, count=count, body=at_rows(spec.body, rows))] if count else []
            continue
        args = [
            replace(
                a,
                within=[sympy.sympify(n).subs({"s0": rows}) for n in a.within],
                device_size=[sympy.sympify(n).subs({"s0": rows}) for n in a.device_size],
                device_coordinates=[c.subs({"s0": rows}) for c in a.device_coordinates],
            )
            for a in spec.args
        ]
        found.append(replace(spec, args=args))
    return found


@pytest.mark.parametrize("rows", [3, 64, 130])
def test_counts_of_the_launch_are_constant_counts_bit_for_bit(rows):
    a, b, found = tensors(rows, rows)
    expected = torch.zeros_like(found)
    compiled(any_rows()).run(a, b, found)
    InductorKernel("add", kernel_of(at_rows(any_rows(), rows))).run(a, b, expected)
    assert torch.equal(found.cpu().view(torch.int16), expected.cpu().view(torch.int16))


def test_bounds_and_strides_are_affine_maps_of_the_size():
    text = print_module(generate_bundle("add", kernel_of(any_rows(), NAMES), SIZES).module)
    assert "%s0: !sdscbundle.input_arg<index, granularity=1>" in text
    assert "affine_map<()[s0] -> (s0 floordiv 64)>" in text
    assert "affine_map<()[s0] -> (s0 mod 64)>" in text
    assert "affine_map<(d0, d1)[s0, s1] -> (s0 + 8192*d0 + 128*s1*d1)>" in text


def test_text_of_specs_makes_them_again():
    names = {"sympify": sympy.sympify, "DataFormats": DATA_FORMATS, "LoopSpec": LoopSpec}
    names |= {"OpSpec": OpSpec, "TensorArg": TensorArg}
    text = spec_text(any_rows())
    assert "within=[2, sympify('s0'), 64]" in text
    assert spec_text(eval(text, names)) == text


@pytest.mark.parametrize(
    ("rows", "given", "expected"),
    [((64, 32), (), "32 in argument 1"), ((64, 64), (32,), "64 in argument 0")],
)
def test_sizes_that_do_not_go_together(rows, given, expected):
    with pytest.raises(LaunchError, match="SPY965") as caught:
        compiled(any_rows()).run(*tensors(*rows), *given)
    assert expected in caught.value.finding.found


def test_sizes_out_of_their_range():
    kernel = compiled(any_rows(), (SizeSpec("s0", ((0, 0),), granularity=16, maximum=64),))
    for rows in (8, 24, 80):
        with pytest.raises(LaunchError, match="SPY965"):
            kernel.run(*tensors(rows, rows))
    with pytest.raises(LaunchError, match="SPY965"):
        compiled(any_rows(), (SizeSpec("s0"),)).run(*tensors(64, 64))


def test_sizes_need_loops_and_symbolic_addresses():
    for form in ({"unrolled": True}, {"symbolic": False}):
        with pytest.raises(UnsupportedError, match="SPY966"):
            generate_bundle("add", kernel_of(any_rows(), NAMES), SIZES, **form)


def test_a_symbol_nobody_says_is_refused():
    with pytest.raises(UnsupportedError, match="SPY964"):
        generate_bundle("add", kernel_of([tiles(64, 1, "s1")], NAMES), SIZES)


def test_pitches_within_a_tile_are_numbers():
    """128 columns at once are two sticks whose distance only the launch knows."""
    space = {"c0": (64, 1), "c1": (128, 1), "c2": (1, 1)}
    spec = op("add", space, [rows_of(k, 64, "0", k == 2) for k in range(3)], tiled=("c2",))
    with pytest.raises(UnsupportedError, match="SPY960"):
        generate_bundle("add", kernel_of([loop("floor(s0/64)", spec)], NAMES), SIZES)


@pytest.mark.parametrize("rows", [64, 70])
def test_kept_bundles_run_with_their_size_as_a_value(rows, tmp_path, monkeypatch):
    monkeypatch.setenv("SPYRE_KEEP", str(tmp_path))
    compiled(any_rows()).run(*tensors(8, 8))
    (kept,) = tmp_path.glob("*add*")
    assert load_bundle(kept).check() == ()
    device = Device(threads=1, sanitize=True, poison=True)
    a, b, _ = tensors(rows, rows)
    inputs = [t.cpu().numpy() for t in (a, b)]
    result = spyre.run(kept, inputs, device=device, values={"s0": rows})
    assert result.outputs[0].shape == (rows, 128)
    assert (result.outputs[0] == (a + b).cpu().numpy()).all()
    with pytest.raises(SpyreError, match="SPY366"):
        spyre.run(kept, device=Device(threads=1))
