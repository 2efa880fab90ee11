"""Runs the checks on the kernels of compiled functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import spyre
from spyre.hw.device.device import Device
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.runtime.run.session import session_of
from spyre.torch_backend.inductor.bundles.generation import generate_bundle
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel

_HOST = {"bfloat16": "float32"}
"""numpy has no bfloat16."""


class KernelChecks:
    """Runs bundles of kernels on a card that watches every access, with random inputs."""

    def __init__(self) -> None:
        self.device = Device(threads=1, sanitize=True, poison=True)

    def findings(self, kernel: InductorKernel, place: Path, **form: bool) -> list[str]:
        """Findings of `spyre-run --check` and `--sanitize`. ``form``: as of `generate_bundle`."""
        return self.run(kernel, place, **form)[0]

    def run(
        self, kernel: InductorKernel, place: Path, **form: bool
    ) -> tuple[list[str], tuple[np.ndarray, ...]]:
        """The findings, and the outputs."""
        directory = write_bundle(generate_bundle(kernel.name, kernel.kernel, **form), place)
        found = [str(finding) for finding in load_bundle(directory).check()]
        result = spyre.run(directory, self._inputs(directory), device=self.device)
        return found + [str(finding) for finding in result.sanitizer], result.outputs

    def _inputs(self, directory: Path) -> dict[str, np.ndarray] | None:
        """None, random numbers, where there are no integers, which may be indices; else zeros."""
        inputs = session_of(self.device).arguments(directory).inputs
        if not any(a.dtype_name.startswith("int") for a in inputs):
            return None
        return {a.name: np.zeros(a.shape, _HOST.get(a.dtype_name, a.dtype_name)) for a in inputs}
