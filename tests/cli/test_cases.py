"""Every real single-kernel case through `spyre-run`, with its values in files.

Good cases exit 0 within the tolerance of their case.json; the compiler's wrong programs exit 1 and
name their worst element.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qa.conformance.cases import find_cases
from spyre.runtime.cases import Case, CaseBuffer, CaseOutput, read_case
from spyre.runtime.program.launch_spec import Role, find_launch_spec, read_launch_spec
from tests.examples import sample
from tests.layout.copies_reference import device_to_host_reference

Array = npt.NDArray[Any]

DEFAULT_TOLERANCE = {"up_test_to_dtype_float32_to_bfloat16_2x4x8x64"}
"""Read back as bfloat16, which rounds once more than the case's tolerance counts."""


def as_buffer(case: Case, output: CaseOutput) -> Array:
    """Expected values, a view of the buffer's storage, in the buffer's own shape."""
    buffer = case.spec.buffers[output.buffer]
    values = case.values[f"expect_{output.value}"].reshape(output.shape)
    storage = np.zeros(math.prod(buffer.shape), values.dtype)
    view(storage, output.shape, output.stride, output.storage_offset)[...] = values
    return view(storage, buffer.shape, buffer.stride, buffer.storage_offset)


def view(storage: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    steps = tuple(s * storage.itemsize for s in strides)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


def input_values(case: Case, buffer: CaseBuffer) -> Array:
    if buffer.value is not None:
        return case.values[buffer.value]
    assert buffer.layout is not None
    assert buffer.device_image is not None
    image = case.images[buffer.device_image].view(np.uint8).ravel()
    layout = buffer.layout
    storage = np.zeros(math.prod(buffer.dma_sizes), buffer.dtype)
    host = device_to_host_reference(
        image, storage, 0, layout, buffer.dma_sizes, buffer.dma_strides, buffer.dtype
    )
    return view(host, buffer.shape, buffer.stride, buffer.storage_offset)


class CommandLine:
    """The command line of a case; its tensors are written below ``directory``."""

    def __init__(self, case: Case, directory: Path) -> None:
        self.case, self.directory = case, directory
        launch = case.spec.launches[0]
        self.bundle = case.directory / launch.bundle
        path = find_launch_spec(self.bundle)
        assert path is not None
        self.roles = {a.arg_index: a.role for a in read_launch_spec(path).args}
        pairs = zip(launch.args, launch.arg_index, strict=True)
        self.buffers = {index: name for name, index in pairs if index >= 0}

    def words(self) -> list[object]:
        inputs, outputs, words = [], [], self.layout_options()
        aliases = self.aliases()
        for index, name in self.buffers.items():
            buffer, role = self.case.spec.buffers[name], self.roles[index]
            if index in aliases:
                continue
            if role is not Role.OUTPUT:
                inputs.append(self.save(f"in{index}", input_values(self.case, buffer)))
            if role is not Role.INPUT:
                output = next(o for o in self.case.spec.outputs if o.buffer == name)
                outputs.append(self.save(f"out{index}", as_buffer(self.case, output)))
        if inputs:
            words += ["-i", *inputs]
        return [self.bundle, *words, "-o", *outputs, *self.tolerance()]

    def save(self, name: str, values: Array) -> Path:
        path = self.directory / f"{name}.npy"
        np.save(path, values)
        return path

    def aliases(self) -> dict[int, int]:
        first: dict[str, int] = {}
        for index, name in self.buffers.items():
            first.setdefault(name, index)
        return {i: first[name] for i, name in self.buffers.items() if first[name] != i}

    def layout_options(self) -> list[object]:
        words: list[object] = []
        for alias, target in self.aliases().items():
            words += ["--alias", f"{alias}={target}"]
        for index, name in self.buffers.items():
            strides = self.case.spec.buffers[name].dma_strides
            if list(strides) != sorted(strides, reverse=True):
                words += ["--strides", f"{index}={','.join(map(str, strides))}"]
        return words

    def tolerance(self) -> list[object]:
        spec = self.case.spec
        if spec.name in DEFAULT_TOLERANCE:
            return []
        return ["--rtol", spec.tolerance.rtol, "--atol", spec.tolerance.atol]


def single_kernel_cases(root: Path) -> list[Case]:
    cases = [read_case(path) for path in find_cases(root)]
    return [case for case in cases if len(case.spec.launches) == 1]


@pytest.mark.shared
@pytest.mark.slow
def test_real_cases(cli, shared_dir, tmp_path):
    """The command line of every fourth case, and of all in the long form; `test_conformance` runs
    all of them without it.
    """
    cases = single_kernel_cases(shared_dir / "bundles")
    assert len(cases) > 200
    failed = []
    for case in sample(cases, 4):
        ran = cli(*CommandLine(case, tmp_path).words(), "-q")
        if ran.code != 0:
            failed.append(f"{case.spec.name}: {ran.out}{ran.err}")
    assert not failed, "\n".join(failed)


@pytest.mark.shared
def test_wrong_programs(cli, shared_dir, tmp_path):
    cases = single_kernel_cases(shared_dir / "bundles-wrong")
    assert cases
    for case in cases:
        ran = cli(*CommandLine(case, tmp_path).words(), "-q")
        assert ran.code == 1, case.spec.name
        assert "elements differ" in ran.out
        assert "on the card: " in ran.out


@pytest.mark.shared
def test_wrong_programs_replay(cli, shared_dir):
    """Also programs of several kernels; the command line names only their directory."""
    directories = find_cases(shared_dir / "bundles-wrong")
    assert any(len(read_case(directory).spec.launches) > 1 for directory in directories)
    for directory in directories:
        ran = cli(directory, "-q")
        assert ran.code == 1, directory.name
        assert "worst element" in ran.out
        assert "on the card: " in ran.out


@pytest.mark.shared
def test_uncovered_sticks_are_named(cli, shared_dir, tmp_path):
    """Columns advanced by host strides: some sticks of the output are never written."""
    case = read_case(shared_dir / "bundles-wrong" / "j_ct_cols_abs_64x512")
    ran = cli(*CommandLine(case, tmp_path).words(), "-q")
    assert "on the card: written by no execute, stick" in ran.out
