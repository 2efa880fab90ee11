"""Running bundles on one device: read, place, transfer, launch, transfer back, report.

A :class:`Session` keeps what it prepared (bundle, plans, linked programs) by the bundle's content,
so a repeated run only moves data and computes. :func:`run` is the one call for scripts, and
``spyre-run`` is a shell around it.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from spyre.errors import Finding, Severity, ValidationError
from spyre.hw.counters import Counters
from spyre.hw.device import Device, DeviceTensor
from spyre.hw.executor import Progress
from spyre.hw.linker import LinkedProgram
from spyre.hw.numerics import Numerics
from spyre.hw.transfer import HostView
from spyre.mlir.bundle import MODULE_FILE, SDSC_PATTERN, Bundle, load_bundle
from spyre.runtime.argument_values import Inputs, prepare_inputs
from spyre.runtime.arguments import (
    ArgumentSpec,
    KernelArguments,
    arguments_of_spec,
    with_strides,
)
from spyre.runtime.core_lookup import CoreLookup
from spyre.runtime.derived_arguments import derive_arguments
from spyre.runtime.host_tensor import HostTensor, TensorSpec
from spyre.runtime.kernel import Kernel, Launch, PoolBuffer
from spyre.runtime.launch_spec import LAUNCH_SPEC_FILE, find_launch_spec, read_launch_spec
from spyre.runtime.run_result import PlacedArgument, RunResult, report_executes
from spyre.runtime.shapes import with_shapes
from spyre.runtime.verify import OutputPlace

BundleLike = Bundle | str | os.PathLike[str]
MAX_KERNELS = 256
"""Prepared kernels a session keeps; the one used longest ago goes first."""


@dataclass(frozen=True)
class RunOptions:
    """How to run.

    ``seed``: random inputs. ``values``: values of index parameters and runtime sizes, by name.
    ``timed``: take the host time of every execute (one call per execute instead of one in all).
    ``check``: diagnose the bundle first, and refuse one with errors. ``shapes``: host shapes of
    the inputs, in order. ``strides``: host strides (elements) by argument index, where they are
    not row-major. ``progress``: called as a timed run goes on.
    """

    seed: int = 0
    values: Mapping[str, int] = field(default_factory=dict)
    timed: bool = False
    check: bool = True
    shapes: Sequence[TensorSpec] = ()
    strides: Mapping[int, Sequence[int]] = field(default_factory=dict)
    progress: Progress | None = None


class Session:
    """A device with the kernels prepared on it. Driven from one thread at a time."""

    def __init__(self, device: Device | None = None) -> None:
        self.device = device if device is not None else Device()
        self._kernels: OrderedDict[object, Kernel] = OrderedDict()

    def kernel(self, bundle: BundleLike) -> Kernel:
        """The kernel of a bundle, prepared once per content (of a `Bundle`: once per object)."""
        key = bundle if isinstance(bundle, Bundle) else content_digest(bundle)
        name = id(key) if isinstance(key, Bundle) else key
        if name not in self._kernels:
            loaded = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
            self._kernels[name] = Kernel(loaded, self.device)
            if len(self._kernels) > MAX_KERNELS:
                self._kernels.popitem(last=False)
        self._kernels.move_to_end(name)
        return self._kernels[name]

    def run(
        self, bundle: BundleLike, inputs: Inputs = None, options: RunOptions | None = None
    ) -> RunResult:
        """Run a bundle once; see :func:`run`."""
        options = options or RunOptions()
        kernel = self.kernel(bundle)
        findings = _check(kernel.bundle) if options.check else ()
        arguments = read_arguments(kernel.bundle, options)
        tensors = prepare_inputs(arguments.inputs, inputs, options.seed)
        with self._placed(kernel, arguments) as placed:
            for spec, tensor in zip(arguments.inputs, tensors, strict=True):
                self.device.upload(placed[spec.arg_index], host_view(tensor, spec))
            launch = _launch(placed, arguments, self._pool(placed), options)
            linked, elapsed = _execute(kernel, launch, options)
            outputs = [self._download(placed[a.arg_index], a) for a in arguments.outputs]
        return _result(
            kernel, launch, linked, elapsed, arguments, tensors, outputs,
            (*arguments.findings, *findings),
        )  # fmt: skip
