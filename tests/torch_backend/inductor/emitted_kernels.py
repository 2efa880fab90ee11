"""The kernels compiled functions are made of, collected, and what the checks find in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import spyre
from spyre.hw.device import Device
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.torch_backend.inductor import async_compile
from spyre.torch_backend.inductor.bundle_generation import generate_bundle
from spyre.torch_backend.inductor.compat import inductor_config
from spyre.torch_backend.inductor.compiled_kernel import CompiledKernel


@contextmanager
def collected_kernels() -> Iterator[list[CompiledKernel]]:
    """Kernels that are made while it is open; Inductor's caches are not used."""
    kernels: list[CompiledKernel] = []

    class Collected(CompiledKernel):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            kernels.append(self)

    with (
        patch.object(async_compile, "CompiledKernel", Collected),
        inductor_config.patch(force_disable_caches=True),
    ):
        yield kernels


class KernelChecks:
    """Runs bundles of kernels on a card that watches every access, with random inputs."""

    def __init__(self) -> None:
        self.device = Device(threads=1, sanitize=True, poison=True)

    def findings(self, kernel: CompiledKernel, place: Path, **form: bool) -> list[str]:
        """What ``--check`` and ``--sanitize`` say of it. ``form``: as of `generate_bundle`."""
        return self.run(kernel, place, **form)[0]

    def run(
        self, kernel: CompiledKernel, place: Path, **form: bool
    ) -> tuple[list[str], tuple[np.ndarray, ...]]:
        """The findings, and the outputs."""
        directory = write_bundle(generate_bundle(kernel.name, kernel.specs, **form), place)
        found = [str(finding) for finding in load_bundle(directory).check()]
        result = spyre.run(directory, device=self.device)
        return found + [str(finding) for finding in result.sanitizer], result.outputs
