"""``prepare_kernel`` and ``launch_jobplan``: SpyreCode directories on the card; their provenance.

A job plan's steps are those of spyrecode.json, from any compiler. Only programs that this package
compiled can run; a directory with another binary gives a plan whose device computations are refused
at launch.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch.utils.weak import TensorWeakRef

from spyre import config
from spyre.dtypes import STICK_BYTES
from spyre.errors import BundleError, JsonLocation, LaunchError, UnsupportedError
from spyre.frontend.formats import AIUPTI_ACTIVITY_NAME_MAX_BYTES, named_as_extension
from spyre.frontend.tensors import extent_bytes, on_card, record_of
from spyre.hw.memory import DeviceTensor
from spyre.hw.spec import REGION_BYTES
from spyre.layout import SpyreTensorLayout
from spyre.runtime.flex import LaunchPlan, LoadedKernel, bytes_to_host, load_code
from spyre.runtime.kernel import Launch, PoolBuffer
from spyre.runtime.program import POOL, owner_of
from spyre.runtime.spyrecode import (
    SPYRECODE_FILE,
    CodeDirectory,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Direction,
    ExecutionCommand,
    holds_program,
    read_code_directory,
)
from spyre.torch_backend.compat import launch_range, profiled
from spyre.torch_backend.device import card_at, warn_user
from spyre.torch_backend.tensors import DeviceBuffer, buffer_of

if TYPE_CHECKING:
    from spyre.frontend.device import FrontendStream
    from spyre.runtime.flex import FlexDevice

_STEP_TYPES = {Direction.H2D: "H2D", Direction.D2H: "D2H"}


@named_as_extension("JobPlan")
class PreparedKernel:
    """A kernel on a card. Any thread may launch it.

    ``loaded``: its program, None for a directory of another compiler.
    """

    def __init__(self, code: CodeDirectory, card: FlexDevice, profiler_name: str | None) -> None:
        self.code = code
        self.card = card
        self.names = _step_names(code, profiler_name)
        self.loaded: LoadedKernel | None = None
        self._plans: dict[tuple[object, ...], LaunchPlan] = {}
        self._offsets: tuple[int, ...] | None = None
        self._warns = True
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Its name in profiles."""
        return next((n for n in self.names if n is not None), self.code.directory.parent.name)

    @property
    def commands(self) -> tuple[ExecutionCommand, ...]:
        return self.code.code.execution

    def num_steps(self) -> int:
        return len(self.commands)

    def job_allocation_size(self) -> int:
        """Bytes of program memory."""
        return self.code.code.allocation_bytes

    def get_step_type(self, idx: int) -> str:
        """H2D, D2H, Compute or HostCompute. RuntimeError for an index without a step."""
        command = self._command(idx)
        if isinstance(command, DataTransfer):
            return _STEP_TYPES[command.direction]
        return "Compute" if isinstance(command, ComputeOnDevice) else "HostCompute"

    def get_step_pipeline_barrier(self, idx: int) -> bool:
        """False for steps that the host may run while the card computes."""
        return not isinstance(self._command(idx), ComputeOnHost)

    def get_step_name(self, idx: int) -> str | None:
        """The name of a device computation in profiles; None for other steps."""
        self._command(idx)
        return self.names[idx]

    def _command(self, idx: int) -> ExecutionCommand:
        if not 0 <= idx < self.num_steps():
            raise RuntimeError("Step index out of range")
        return self.commands[idx]

    def __repr__(self) -> str:
        buffers = sum(isinstance(command, ComputeOnHost) for command in self.commands)
        return (
            f"<JobPlan steps={self.num_steps()} job_allocation_size={self.job_allocation_size()} "
            f"expected_inputs=0 pinned_buffers={buffers}>"
        )

    # --- launching ------------------------------------------------------------------------------

    def launch(self, loaded: LoadedKernel, buffers: Sequence[DeviceBuffer], tensors: Any) -> None:
        """Enqueue it over memory: the pool first, if it has one, then arguments in the order of
        the program's parameters.
        """
        self._check_offsets(loaded.name, tuple([tensor.storage_offset() for tensor in tensors]))
        pairs = zip(buffers, tensors, strict=True)
        key = tuple([(b.host_bytes, record_of(tensor, b).layout) for b, tensor in pairs])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(loaded, buffers, tensors)
            with self._lock:
                self._plans[key] = plan
        addresses = [buffer.address_bytes for buffer in buffers]
        if "pool" in plan.names:
            addresses.append(addresses.pop(0))
        keep_alive = [buffer.memory for buffer in buffers]
        with profiled(launch_range(loaded.name)):
            work = loaded.bind_at(
                plan, tuple(addresses), keep_alive, is_corrected=self.card.scheduler.is_observed
            )
            self.card.streams.current.submit(work)

    def _plan(
        self, loaded: LoadedKernel, buffers: Sequence[DeviceBuffer], tensors: Any
    ) -> LaunchPlan:
        """The plan of launches like this one; errors of linking, and warnings as `_check_start`."""
        arguments, pool = _bound(loaded, buffers, tensors)
        launch = Launch(arguments, pool)
        plan = LaunchPlan.of(loaded.kernel, launch)
        # Linking errors belong to this launch, not to the next call that waits for it.
        linked = loaded.kernel.link_at(plan.signature, launch.addresses, plan.names)
        begins, held = linked.code.first_bytes(), launch.addresses
        named = zip(launch.names, tensors[pool is not None :], held, strict=False)
        # Of views of one storage, an access may be that of any.
        alone = {name: tensor for name, tensor, a in named if held.count(a) == 1}
        self._check_start(loaded.name, begins, alone)
        return plan

    def _check_offsets(self, name: str, offsets: tuple[int, ...]) -> None:
        """Warn once of views at other storage offsets than those of the first launch.

        A kernel has the offsets it was compiled for and never reads those of its arguments;
        torch-spyre of these commits runs it for views at other offsets too.
        """
        if self._offsets is None:
            self._offsets = offsets
        elif self._warns and offsets != self._offsets:
            self._warns = False
            warn_user(
                f"{name} is run for views with the storage offsets {offsets}, before with "
                f"{self._offsets}: it accesses memory at the offsets it was compiled for, here as "
                f"on the card. {config.GUARD_OFFSETS.name}=1 avoids it. See {OFFSETS_ISSUE}"
            )

    def _check_start(
        self, name: str, first_bytes: dict[str, int], views: dict[str, torch.Tensor]
    ) -> None:
        """Warn once if accesses of an argument begin outside of the view that it is.

        So do those of a kernel from torch's cache that was compiled for another storage offset.
        ``first_bytes``: from the start of each argument's allocation.
        """
        for argument, tensor in views.items():
            extent, first = extent_bytes(tensor), first_bytes.get(argument)
            if self._warns and extent and first is not None and first not in extent:
                self._warns = False
                warn_user(
                    f"{name} is run for a view in bytes {extent.start} to {extent.stop} of its "
                    f"memory, but accesses it from byte {first}: it was compiled for another "
                    f"storage offset, here as on the card. See {OFFSETS_ISSUE}"
                )


OFFSETS_ISSUE = "https://github.com/torch-spyre/torch-spyre/issues/3770"


def guard_storage_offsets() -> None:
    """Have torch.compile compile a function again for views at other storage offsets.

    For commits of torch-spyre with OFFSETS_ISSUE, which compile the offsets into the kernels.
    """
    from torch._dynamo.guards import GuardBuilder
    from torch._inductor.codecache import FxGraphHashDetails

    tensor_match, hash_details = GuardBuilder.TENSOR_MATCH, FxGraphHashDetails.__init__

    @functools.wraps(tensor_match)
    def match(self: Any, guard: Any, value: Any = None) -> None:
        tensor_match(self, guard, value=value)
        tensor = self.get(guard) if value is None else value
        tensor = tensor() if isinstance(tensor, TensorWeakRef) else tensor
        if tensor.device.type == "spyre":
            offset, text = tensor.storage_offset(), f"{guard.name}.storage_offset()"
            manager = self.get_guard_manager(guard)
            manager.add_lambda_guard(
                lambda view: view.storage_offset() == offset, [text], guard.user_stack
            )

    @functools.wraps(hash_details)
    def hashed(self: Any, graph: Any, inputs: Sequence[Any], *rest: Any) -> None:
        hash_details(self, graph, inputs, *rest)
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        self.storage_offsets = [str(tensor.storage_offset()) for tensor in tensors]

    GuardBuilder.TENSOR_MATCH, FxGraphHashDetails.__init__ = match, hashed


def _step_names(code: CodeDirectory, profiler_name: str | None) -> list[str | None]:
    names: list[str | None] = []
    for k, command in enumerate(code.code.execution):
        if not isinstance(command, ComputeOnDevice):
            names.append(None)
        elif profiler_name:
            names.append(_bounded(f"{profiler_name}#{k}"))
        else:
            directory = code.directory
            names.append(
                command.name or f"{directory.parent.name}/{directory.name}/bundle.mlir#{k}"
            )
    return names


def _bounded(name: str) -> str:
    if len(name.encode()) > AIUPTI_ACTIVITY_NAME_MAX_BYTES:
        raise RuntimeError(
            f"profiler-visible compute name exceeds AIUPTI limit: {len(name.encode())} bytes, at "
            f"most {AIUPTI_ACTIVITY_NAME_MAX_BYTES}: {name}"
        )
    return name


def prepare_kernel(
    spyrecode_dir: str | os.PathLike[str],
    stream: FrontendStream | None = None,
    profiler_name: str | None = None,
) -> PreparedKernel:
    """The kernel of a SpyreCode directory on the current card, or on that of ``stream``.

    ``profiler_name``: its name in profiles. Errors as of `read_code_directory` and `load_code`,
    RuntimeError for a name that is too long.
    """
    code = read_code_directory(Path(spyrecode_dir))
    _check_transfers(code)
    card = card_at(-1 if stream is None else stream.flex.device.index)
    plan = PreparedKernel(code, card, profiler_name)
    if all(map(holds_program, code.binaries)):
        on_stream = card.streams.current if stream is None else stream.flex
        plan.loaded = load_code(code, card, on_stream, profiler_name or "")
    return plan


def _check_transfers(code: CodeDirectory) -> None:
    """LaunchError SPY828 for a copy from a tensor's segment if addresses are launch arguments.

    Segments do not identify tensors then.
    """
    if config.BUNDLE_SYMBOLIC_ARGS.read() != "1":
        return
    for command in code.code.execution:
        if isinstance(command, DataTransfer) and _reads_tensor(command):
            raise LaunchError(
                "SPY828",
                "D2H dev_ptr must be in program segment",
                JsonLocation(str(code.directory / SPYRECODE_FILE), "$.JobExecPlan"),
                found=f"{command.dev_ptr:#x}, with BUNDLE_SYMBOLIC_ARGS=1",
            )


def _reads_tensor(command: DataTransfer) -> bool:
    return command.direction is Direction.D2H and command.dev_ptr < PROGRAM_SEGMENT * REGION_BYTES


PROGRAM_SEGMENT = 7


def launch_jobplan(job_plan: PreparedKernel, args: Sequence[torch.Tensor]) -> None:
    """Enqueue a kernel on the current stream of its card.

    ``args``: its pool first, if it has one, then its tensors. Addresses are those of allocations,
    whatever views the tensors are. RuntimeError for tensors elsewhere. Errors of linking are raised
    here, those of the run when the stream is synchronized.
    """
    tensors = list(args)
    for k, tensor in enumerate(tensors):
        if tensor.device.type != "spyre":
            raise RuntimeError(
                f"SpyreStream::launch: argument {k} must be on Spyre device, got {tensor.device}"
            )
    buffers = [buffer_of(tensor) for tensor in tensors]
    if job_plan.loaded is None:
        for command in job_plan.commands:
            _run_unknown(job_plan, command, buffers)
        return
    job_plan.launch(job_plan.loaded, buffers, tensors)


def _bound(
    loaded: LoadedKernel, buffers: Sequence[DeviceBuffer], tensors: Sequence[torch.Tensor]
) -> tuple[dict[int, DeviceTensor], PoolBuffer | None]:
    """Memory by argument index, and the pool.

    The K-th tensor belongs to the K-th address among the parameters, whose numbers may have gaps.
    """
    owners = [owner_of(p.name) for p in loaded.kernel.bundle.program.parameters]
    named = sorted({k for k in owners if k is not None and k != POOL})
    pool = None
    if POOL in owners and buffers:
        pool = PoolBuffer(buffers[0].address_bytes, buffers[0].host_bytes)
        buffers, tensors = buffers[1:], tensors[1:]
    if not owners or (named and named[-1] + 1 == len(buffers)):
        # Literal addresses, or the program does not use all tensors: they are arguments in order.
        named = [*range(len(buffers))]
    if len(named) != len(buffers):
        raise LaunchError(
            "SPY878",
            f"{loaded.name} takes {len(named)} tensors",
            expected=", ".join(f"arg_{k}" for k in named),
            found=f"{len(buffers)} tensors",
        )
    memory = zip(named, buffers, tensors, strict=True)
    return {k: _argument(k, buffer, tensor) for k, buffer, tensor in memory}, pool


def _argument(number: int, buffer: DeviceBuffer, tensor: torch.Tensor) -> DeviceTensor:
    """The whole allocation: in the tensor's layout where that is all of it, else as a row."""
    memory = on_card(tensor)
    name = f"arg_{number}"
    if memory.layout.device_bytes == buffer.host_bytes:
        return replace(memory, name=name)
    layout = memory.layout
    sticks, lanes = -(-buffer.host_bytes // STICK_BYTES), layout.device_size[-1]
    row = SpyreTensorLayout((sticks, lanes), (lanes, 1), layout.device_dtype)
    return replace(memory, name=name, layout=row, sizes=(sticks * lanes,), strides=(1,))


# --- plans of other compilers ---------------------------------------------------------------------


def _run_unknown(
    plan: PreparedKernel, command: ExecutionCommand, buffers: Sequence[DeviceBuffer]
) -> None:
    """One step of a plan whose program is not known: transfers run, nothing else can."""
    place = JsonLocation(str(plan.code.directory / SPYRECODE_FILE), "$.JobExecPlan")
    if isinstance(command, DataTransfer) and _reads_tensor(command):
        address = _address_in_segment(command, buffers)
        copy = bytes_to_host(address, command.size_bytes, command.host_handle)
        plan.card.streams.current.copy(copy, [buffer.memory for buffer in buffers])
        return
    if isinstance(command, ComputeOnHost) and not command.hcm.vdci:
        raise BundleError(
            "SPY834", f"Expect one DCI to fill '{command.ohandle}' by, got none", place
        )
    raise UnsupportedError(
        "SPY885",
        "a plan with a program of another compiler cannot be run",
        place,
        expected="a directory that dxp_standalone of this package wrote",
        found=type(command).__name__,
    )


def _address_in_segment(command: DataTransfer, buffers: Sequence[DeviceBuffer]) -> int:
    """Where a transfer reads: segment K holds the K-th argument."""
    segment, offset = divmod(command.dev_ptr, REGION_BYTES)
    if segment >= len(buffers):
        raise LaunchError(
            "SPY363",
            f"D2H tensor-segment lookup out of range: segment {segment}",
            expected=f"one of {len(buffers)} launch arguments",
            found=f"{command.dev_ptr:#x}",
        )
    buffer = buffers[segment]
    if offset + command.size_bytes > buffer.host_bytes:
        raise LaunchError(
            "SPY403",
            "D2H transfer out of bounds",
            expected=f"at most {buffer.host_bytes} bytes of argument {segment}",
            found=f"{command.size_bytes} bytes at {offset}",
        )
    return buffer.address_bytes + offset


# --- provenance -----------------------------------------------------------------------------------

_EVENT_NAME = re.compile(r"spyre_kernel_v1_[A-Za-z0-9_]+_([a-z2-7]{16})(#[0-9]+)?")
"""How torch-spyre names kernels: with a key of 16 characters of base 32, under which it registers
the debug handles of the operations that a kernel computes."""
_handles: dict[str, list[str]] = {}
"""Debug handles by key; later ones for the same key are ignored."""
_lookups = {"hits": 0, "misses": 0, "conflicts": 0}
_registry_lock = threading.Lock()


def extract_kernel_provenance_key(event_name: str) -> str | None:
    """The key in a kernel's name, with or without the number of a step; None without one."""
    match = _EVENT_NAME.fullmatch(event_name)
    return None if match is None else match[1]


def register_kernel_provenance(event_base_name: str, debug_handle_ids: Sequence[str]) -> bool:
    """Whether these are the handles of the kernel's key from now on.

    Names without a key, and other handles for a known key, are warned of and not taken.
    """
    key = extract_kernel_provenance_key(event_base_name)
    if key is None:
        warnings.warn(
            f"no kernel provenance is registered: {event_base_name!r} is no name of a kernel",
            stacklevel=2,
        )
        return False
    handles = list(debug_handle_ids)
    with _registry_lock:
        known = _handles.setdefault(key, handles)
        if known == handles:
            return True
        _lookups["conflicts"] += 1
    warnings.warn(
        f"kernel provenance of {key} stays {json.dumps(known)}; {json.dumps(handles)} is not taken",
        stacklevel=2,
    )
    return False


def lookup_kernel_provenance(key: str) -> list[str] | None:
    """The debug handles registered for a key; None without any."""
    with _registry_lock:
        found = _handles.get(key)
        _lookups["misses" if found is None else "hits"] += 1
    return None if found is None else list(found)


def kernel_provenance_registry_stats() -> dict[str, int]:
    """Number of entries, and of lookups and conflicts until now."""
    with _registry_lock:
        return {"entries": len(_handles), **_lookups}
