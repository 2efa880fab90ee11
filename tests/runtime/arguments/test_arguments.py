"""Arguments: from a launch spec, with shapes, strides and aliases given, and derived from SDSCs."""

from __future__ import annotations

import shutil
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

import spyre
from qa.conformance.cases import find_cases
from spyre.errors import LaunchError, Severity
from spyre.hw.device.device import Device
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise, reduction
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.runtime.arguments.host_tensor import parse_tensor_spec
from spyre.runtime.arguments.read import derive_arguments, read_arguments
from spyre.runtime.arguments.specs import (
    KernelArguments,
    arguments_of_spec,
    find_host_strides,
    with_alias,
    with_shapes,
)
from spyre.runtime.cases import read_case
from spyre.runtime.program.launch_spec import ArgumentEntry, LaunchSpec, Role, read_launch_spec
from tests.runtime import bundles

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def spec_of(*shapes: tuple[int | str, ...]) -> LaunchSpec:
    roles = [Role.INPUT] * (len(shapes) - 1) + [Role.OUTPUT]
    arguments = tuple(
        ArgumentEntry(k, role, shape, "float16")
        for k, (role, shape) in enumerate(zip(roles, shapes, strict=True))
    )
    return LaunchSpec(1, "k", arguments, pool_size=256)


class TestLaunchSpec:
    def test_arguments(self):
        found = arguments_of_spec(spec_of((4, 70), (4, 70)))
        assert found.pool_bytes == 256
        assert [a.name for a in found.inputs] == ["arg_0"]
        assert [a.name for a in found.outputs] == ["arg_1"]
        first = found.arguments[0]
        assert str(first.host_spec) == "4x70@float16"
        assert first.strides == (70, 1)
        assert first.layout == SpyreTensorLayout.from_host((4, 70), "float16")

    def test_in_place_counts_on_both_sides(self):
        argument = ArgumentEntry(0, Role.INPUT_OUTPUT, (64,), "float16")
        found = arguments_of_spec(LaunchSpec(1, "k", (argument,)))
        assert found.inputs == found.outputs == found.arguments

    def test_runtime_sizes(self):
        found = arguments_of_spec(spec_of(("s0", 64), ("s0", 64)), {"s0": 128})
        assert found.arguments[0].shape == (128, 64)
        with pytest.raises(LaunchError, match="'s0' of argument 0 has no value"):
            arguments_of_spec(spec_of(("s0", 64)), {"s1": 1})


class TestHostStrides:
    @given(st.lists(st.integers(1, 130), min_size=1, max_size=4))
    def test_default_layouts_are_row_major(self, shape):
        layout = SpyreTensorLayout.from_host(shape, "float16")
        assert find_host_strides(shape, layout) == contiguous_strides(shape)

    @given(st.lists(st.integers(2, 100), min_size=2, max_size=3, unique=True), st.data())
    def test_transposed_tensors_are_recognised(self, shape, data):
        """Dense strides in another order, where row-major ones do not fit the layout."""
        order = data.draw(st.sampled_from(list(permutations(range(len(shape))))))
        strides, step = [0] * len(shape), 1
        for dim in reversed(order):
            strides[dim] = step
            step *= shape[dim]
        layout = SpyreTensorLayout.from_dim_order(shape, strides, "float16", order)
        found = find_host_strides(shape, layout)
        assume(found != contiguous_strides(shape))
        assert found == tuple(strides)

    def test_nothing_fits(self):
        layout = SpyreTensorLayout((2, 4, 64), (64, 128, 1), "SEN169_FP16")
        with pytest.raises(LaunchError, match="SPY322"):
            find_host_strides((4, 500), layout)

    @pytest.mark.shared
    def test_real_layouts(self, shared_dir):
        """Right for every real buffer but square transposed ones, which nothing tells apart."""
        wrong = set()
        for path in find_cases(shared_dir / "bundles"):
            for buffer in read_case(path).spec.buffers.values():
                if buffer.layout is None:
                    continue
                sizes = buffer.dma_sizes
                found = find_host_strides(sizes, buffer.layout)
                pairs = zip(sizes, found, buffer.dma_strides, strict=True)
                if any(size > 1 and a != b for size, a, b in pairs):
                    wrong.add((path.name, sizes))
        assert len(wrong) <= 3
        assert all(sizes[0] == sizes[1] for _, sizes in wrong)


class TestOverrides:
    @pytest.fixture
    def derived(self, tmp_path) -> KernelArguments:
        return read_arguments(load_bundle(bundles.abs_of_sum(tmp_path / "b", spec=False)))

    def test_shapes_of_derived_inputs(self, derived):
        """100 columns need two sticks, as 128 do."""
        shapes = [parse_tensor_spec("32x100@fp16"), parse_tensor_spec("32x128@bf16")]
        found = with_shapes(derived, shapes)
        assert [str(a.host_spec) for a in found.inputs] == ["32x100@float16", "32x128@bfloat16"]
        assert found.outputs == derived.outputs
        assert found.inputs[0].layout.stride_map == (64, 100, 1)

    def test_shapes_must_fit(self, derived):
        good = parse_tensor_spec("32x128")
        for shapes in ([good], [good, parse_tensor_spec("32x300")]):
            with pytest.raises(LaunchError, match="SPY365"):
                with_shapes(derived, shapes)

    def test_alias_merges_roles(self):
        found = with_alias(arguments_of_spec(spec_of((64,), (64,))), 1, 0)
        assert [a.role for a in found.arguments] == [Role.INPUT_OUTPUT]
        assert [(a.arg_index, target) for a, target in found.aliases] == [(1, 0)]

    def test_unknown_indices(self, tmp_path):
        bundle = load_bundle(bundles.abs_of_sum(tmp_path / "b"))
        with pytest.raises(LaunchError, match="SPY363"):
            read_arguments(bundle, strides={7: (1,)})
        with pytest.raises(LaunchError, match="SPY363"):
            read_arguments(bundle, aliases={0: 7})

    def test_strides(self, tmp_path):
        bundle = load_bundle(bundles.abs_of_sum(tmp_path / "b"))
        with pytest.raises(LaunchError, match="SPY322"):
            read_arguments(bundle, strides={0: (1, 32)})
        assert read_arguments(bundle, strides={0: (128, 1)}) == read_arguments(bundle)


class TestDerived:
    @pytest.mark.parametrize("symbolic", [True, False])
    def test_pool_and_arguments(self, tmp_path, symbolic):
        bundle = load_bundle(bundles.abs_of_sum(tmp_path / "b", symbolic, spec=False))
        found = read_arguments(bundle)
        assert found.is_derived
        assert found.pool_bytes == bundles.NBYTES
        assert [a.role for a in found.arguments] == [Role.INPUT, Role.INPUT, Role.OUTPUT]
        expected = SpyreTensorLayout.from_host(bundles.SHAPE, "float16")
        assert {a.layout for a in found.arguments} == {expected}
        assert [f.code for f in found.findings] == ["SPY364"]
        assert found.findings[0].severity is Severity.WARNING

    def test_in_place(self, tmp_path):
        found = derive_arguments(load_bundle(bundles.add_in_place(tmp_path / "b")), {})
        assert [a.role for a in found.arguments] == [Role.INPUT_OUTPUT, Role.INPUT]

    def test_a_loop_covers_the_whole_tensor(self):
        found = derive_arguments(load_bundle(EXAMPLES / "add_loop"), {})
        assert {a.shape for a in found.arguments} == {(256, 512)}

    def test_formats_and_lanes(self, tmp_path):
        """A float32 tensor, and a reduced one that keeps a value per stick."""
        builder = BundleBuilder()
        x = HostOperand(builder.argument(16 * 128 * 4).at(), data_format="IEEE_FP32")
        y = HostOperand(builder.argument(16 * 128).at(), data_format="IEEE_FP32")
        builder.add(reduction("sum", (16, 96), (1,), x, y))
        found = derive_arguments(load_bundle(write_bundle(builder.build(), tmp_path)), {})
        assert [str(a.host_spec) for a in found.arguments] == ["16x96@float32", "16@float32"]
        assert found.arguments[1].layout == SpyreTensorLayout((16, 32), (1, -1), "IEEE_FP32")

    def test_integers(self, tmp_path):
        builder = BundleBuilder()
        operands = (
            HostOperand(builder.argument(16 * 128).at(), data_format="IEEE_INT32") for _ in range(2)
        )
        builder.add(pointwise("identity", (16, 32), [next(operands)], next(operands)))
        found = derive_arguments(load_bundle(write_bundle(builder.build(), tmp_path)), {})
        assert {a.dtype_name for a in found.arguments} == {"int32"}

    def test_unnamed_parameter(self, tmp_path):
        directory = bundles.abs_of_sum(tmp_path / "b", spec=False)
        module = directory / "bundle.mlir"
        text = module.read_text().replace("%arg_0_base_addr: !s", "%n: index, %arg_0_base_addr: !s")
        module.write_text(text)
        bundle = load_bundle(directory)
        with pytest.raises(LaunchError, match="no value for parameter %n"):
            read_arguments(bundle)
        assert len(read_arguments(bundle, {"n": 5}).arguments) == 3

    @pytest.mark.parametrize("name", ["softmax", "matmul", "add_loop"])
    def test_examples_run_the_same_without_launch_spec(self, tmp_path, name):
        shutil.copytree(EXAMPLES / name, tmp_path / "b")
        (tmp_path / "b" / "launch_spec.json").unlink()
        device = Device(threads=1)
        with_spec = spyre.run(EXAMPLES / name, device=device)
        without = spyre.run(tmp_path / "b", device=device)
        np.testing.assert_array_equal(with_spec.outputs[0], without.outputs[0])

    @pytest.mark.shared
    def test_real_bundles(self, shared_dir):
        """Device memory, dtype class and role of every argument that launch_spec.json has."""
        compared, odd_roles = 0, 0
        for path in find_cases(shared_dir / "bundles"):
            case = read_case(path)
            if len(case.spec.launches) > 1 or path.name == "j_inplace_add":
                continue
            directory = path / case.spec.launches[0].bundle
            wanted = arguments_of_spec(read_launch_spec(directory / "launch_spec.json"))
            found = derive_arguments(load_bundle(directory), {})
            assert found.pool_bytes <= wanted.pool_bytes
            for a, b in zip(found.arguments, wanted.arguments, strict=True):
                compared += 1
                assert a.arg_index == b.arg_index
                assert a.layout.device_bytes == b.layout.device_bytes, path.name
                odd_roles += a.role is not b.role
        assert compared > 600
        assert odd_roles <= 3
