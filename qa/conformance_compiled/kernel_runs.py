"""Records the kernel launches of compiled functions, and runs their kept bundles once more."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

import spyre
from spyre.hw.device.device import Device
from spyre.mlir.bundle import BundleContents, load_bundle, write_bundle
from spyre.runtime.arguments.host_tensor import HostTensor
from spyre.runtime.dma import host_like
from spyre.runtime.flex.steps import to_host_plan
from spyre.torch_backend.eager.launch import number_on_card
from spyre.torch_backend.inductor.base.sources import KernelCall
from spyre.torch_backend.inductor.bundles.generation import generate_bundle
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel, launch_spec_files
from spyre.torch_backend.tensors.allocation import DeviceBuffer, StorageLayout


@dataclass(frozen=True)
class KernelRun:
    """A launch, with the contents and layouts of its arguments before it, by arg_index."""

    kernel: InductorKernel
    layouts: tuple[StorageLayout, ...]
    held: tuple[HostTensor, ...]

    @property
    def digest(self) -> str:
        """Hash of the contents of its inputs."""
        found = hashlib.sha256()
        for expected, tensor in zip(self.kernel.memory.arguments, self.held, strict=True):
            if expected.is_input:
                found.update(repr((tensor.dtype_name, tensor.shape)).encode())
                found.update(tensor.storage.tobytes())
        return found.hexdigest()


@contextmanager
def recorded() -> Iterator[list[KernelRun]]:
    """Record the kernel launches within the block."""
    found: list[KernelRun] = []
    original = InductorKernel._launch

    def launch(self: InductorKernel, buffers: Sequence[Any], call: KernelCall) -> None:
        card = buffers[0].card
        constants = [number_on_card(card, number, dtype) for number, dtype in self.constants]
        arguments = [*buffers, *constants]
        layouts = tuple(b.base for b in arguments if b.base is not None)
        found.append(KernelRun(self, layouts, tuple(map(_content, arguments))))
        original(self, buffers, call)

    InductorKernel._launch = launch  # type: ignore[method-assign]
    try:
        with torch._inductor.config.patch(force_disable_caches=True):
            yield found
    finally:
        InductorKernel._launch = original  # type: ignore[method-assign]


def _content(buffer: DeviceBuffer) -> HostTensor:
    """Return a copy of the buffer's contents on the host."""
    host, stream = host_like(buffer.tensor), buffer.card.streams.current
    stream.copy(to_host_plan(buffer.tensor, host), [buffer.memory])
    stream.synchronize()
    return host


@cache
def _watching_device() -> Device:
    """Device of all bundles: to map and unmap its memory takes longer than most bundles run."""
    return Device(threads=1, sanitize=True, poison=True)


@dataclass(frozen=True)
class KeptRun:
    """``findings`` of --check and --sanitize; ``outputs``: bits by output argument."""

    findings: tuple[str, ...]
    outputs: tuple[bytes, ...]


class KeptBundles:
    """Writes bundles of kernels, checks them, and runs them on a card that checks every access.

    Equal bundles with equal inputs are run once.
    """

    def __init__(self, place: Callable[[], Path]) -> None:
        self._place = place
        self._device = _watching_device()
        self._known: dict[tuple[str, bool, str], KeptRun] = {}

    def run(self, launched: KernelRun, *, symbolic: bool) -> KeptRun:
        """Return the findings and outputs of the kept bundle of one launch."""
        key = (launched.kernel.kernel, symbolic, launched.digest)
        if key not in self._known:
            self._known[key] = self._run(launched, symbolic)
        return self._known[key]

    def _run(self, launched: KernelRun, symbolic: bool) -> KeptRun:
        directory = write_bundle(_parts(launched, symbolic), self._place())
        findings = [str(finding) for finding in load_bundle(directory).check()]
        expected = launched.kernel.memory.arguments
        inputs = {k: t for k, t in enumerate(launched.held) if expected[k].is_input}
        result = spyre.run(directory, inputs, device=self._device)
        findings += [str(finding) for finding in result.sanitizer]
        outputs = tuple(t.to_array().tobytes() for t in result.output_tensors)
        return KeptRun(tuple(findings), outputs)


def _parts(launched: KernelRun, symbolic: bool) -> BundleContents:
    kernel = launched.kernel
    parts = generate_bundle(kernel.name, kernel.kernel, symbolic=symbolic)
    files = launch_spec_files(kernel.name, kernel.memory, launched.layouts, symbolic)
    return replace(parts, extra_files=files)
