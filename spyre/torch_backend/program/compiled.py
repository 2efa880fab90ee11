"""Programs of the PyTorch device, launched by the addresses of their arguments.

`show_program` logs programs (TORCH_SPYRE_DEBUG) and writes their bundles (SPYRE_KEEP).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from spyre import config
from spyre.errors import LaunchError
from spyre.hw.linking import LinkedProgram
from spyre.mlir.builder import BuiltBundle
from spyre.mlir.bundle import write_bundle
from spyre.runtime.arguments import KernelArguments
from spyre.runtime.flex import JobWork, LaunchPlan, LoadedKernel
from spyre.runtime.kernel import Kernel, LaunchSignature
from spyre.runtime.spyrecode import format_header
from spyre.torch_backend.compat import launch_range, profiled, profiler_is_on
from spyre.torch_backend.device import out_of_memory_as_torch_says
from spyre.torch_backend.registration import log_program

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice, FlexStream, SourceLines
    from spyre.runtime.memory import DeviceStorage


class CompiledProgram(LoadedKernel):
    """A program of the PyTorch device. Any thread may launch it.

    ``spans_bytes``: memory of every argument, from the first stick it touches. ``bundle``: the
    compiled program.
    """

    def __init__(
        self,
        card: FlexDevice,
        name: str,
        parts: BuiltBundle,
        spans_bytes: Sequence[int],
        identity: object,
    ) -> None:
        self._range = launch_range(name)
        self.bundle = replace(parts, directory=Path(name))
        self.spans_bytes = tuple(spans_bytes)
        kernel = Kernel(self.bundle, card.device)
        header = format_header(hashlib.sha256(repr(identity).encode()).hexdigest())
        with out_of_memory_as_torch_says(card, f"program memory for {name}"):
            super().__init__(card, name, kernel, _no_arguments, header)
        self._is_linked = False
        self._launch_plan = self.launch_plan(self.spans_bytes)
        stream = card.streams.current
        stream.wait_for(stream.copy(self.load_plan(header), ()))

    def launch_plan(
        self, spans_bytes: Sequence[int], values: Mapping[str, int] | None = None
    ) -> LaunchPlan:
        """Launches with arguments of these spans; ``values``: of its runtime sizes, by name."""
        signature = LaunchSignature.of_memory(spans_bytes, values or {})
        return LaunchPlan(self.kernel, signature, signature.names, sum(signature.sizes))

    def launch(
        self,
        stream: FlexStream,
        addresses: tuple[int, ...],
        keep_alive: Sequence[DeviceStorage | None],
        launch_plan: LaunchPlan | None = None,
        origin: SourceLines | None = None,
    ) -> None:
        """Enqueue it with arguments at ``addresses``; ``keep_alive`` is held until it has run.

        ``launch_plan``: of a program with runtime sizes. ``origin``: its source lines. The first
        launch without ``launch_plan`` raises the errors of linking.
        """
        if launch_plan is None and not self._is_linked:
            self.linked_at(addresses)
            self._is_linked = True
        plan = launch_plan or self._launch_plan
        work = JobWork(self.bound_plan, self.card, keep_alive, plan, addresses, None, origin)
        if not profiler_is_on():
            stream.submit(work)
            return
        with profiled(self._range):
            stream.submit(work)

    def linked_at(self, addresses: tuple[int, ...]) -> LinkedProgram:
        """The linked program of a launch with arguments at ``addresses``."""
        return self.kernel.link_at(self._launch_plan.signature, addresses)


def _no_arguments(values: Mapping[str, int]) -> KernelArguments:
    raise LaunchError("SPY366", "a program of the PyTorch device is launched by addresses")


# --- output ---------------------------------------------------------------------------------------

LISTING_FILE = "operations.txt"


def shows_programs() -> bool:
    """True if the environment enables the log or SPYRE_KEEP."""
    return config.TORCH_DEBUG.is_on or config.KEEP.directory is not None


def show_program(name: str, listing: str, parts: BuiltBundle) -> None:
    """Log a program that is about to be compiled, and write it to a new directory named after it,
    if the environment enables that.

    ``listing``: its operations, one per line. LaunchError SPY951 if SPYRE_KEEP cannot be written.
    """
    if config.TORCH_DEBUG.is_on:
        log_program(name, listing)
    if (directory := config.KEEP.directory) is None:
        return
    files = {**parts.extra_files, LISTING_FILE: f"{listing}\n".encode()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        place = new_numbered_directory(directory, name)
        write_bundle(replace(parts, extra_files=files), place)
    except OSError as error:
        raise LaunchError(
            "SPY951",
            f"the program {name} cannot be written to {directory}",
            expected="SPYRE_KEEP to name a directory that may be written",
            found=error.strerror or type(error).__name__,
        ) from error


def new_numbered_directory(directory: Path, name: str) -> Path:
    """Create a directory with the next free number; safe for several processes."""
    text = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
    while True:
        heads = (entry.name.split("-", 1)[0] for entry in directory.iterdir())
        number = max((int(head) for head in heads if head.isdecimal()), default=0) + 1
        directory_made = directory / f"{number:04d}-{text}"
        try:
            directory_made.mkdir()
        except FileExistsError:  # another process took the number
            continue
        return directory_made
