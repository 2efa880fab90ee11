"""Running a kernel on tensors, whole or in tiles, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.hw.device.device import Device
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.layout import contiguous_strides
from spyre.runtime.arguments.host_tensor import HostTensor
from spyre.runtime.dma import DmaEngine
from spyre.runtime.kernel.kernel import Kernel, Launch, PoolBuffer
from spyre.runtime.program.launch_spec import Role
from spyre.runtime.tiling.device_dims import operand_uses
from spyre.runtime.tiling.execute import Tiler, TileSteps
from spyre.runtime.tiling.kernel_dims import expected_tensors
from spyre.runtime.tiling.tile_plan import TilePlan, TilingOptions, plan_tiles
from tests.runtime.tiling import kernels
from tests.runtime.tiling.kernels import Arg, Built

Array = npt.NDArray[np.generic]


class Outcome(msgspec.Struct, frozen=True):
    """Outputs as the host sees them, and their raw device bytes."""

    values: tuple[Array, ...]
    raw: tuple[npt.NDArray[np.uint8], ...]
    plan: TilePlan | None = None


def random_inputs(args: Sequence[Arg], seed: int) -> list[Array]:
    """Multiples of 1/8 between -4 and 4, one array per argument that is read."""
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(-32, 33, arg.shape) / 8).astype(arg.dtype)
        for arg in args
        if arg.role is not Role.OUTPUT
    ]


def place(device: Device, arg: Arg, name: str, array: Array | None) -> DeviceTensor:
    layout = arg.layout
    address = device.allocate(layout.device_bytes)
    strides = contiguous_strides(arg.shape)
    tensor = DeviceTensor(name, address, layout, arg.dtype, arg.shape, strides)
    if array is not None:
        DmaEngine(device).to_device(
            HostTensor.from_array(name, np.ascontiguousarray(array)), tensor
        )
    return tensor


def launch_of(device: Device, built: Built, args: Sequence[Arg], inputs: Sequence[Array]) -> Launch:
    """Tensors ``args`` on the device, the pool of ``built``."""
    given = iter(inputs)
    tensors = {
        k: place(device, arg, f"t{k}", next(given) if arg.role is not Role.OUTPUT else None)
        for k, arg in enumerate(args)
    }
    size = built.arguments.pool_bytes
    pool = PoolBuffer(device.allocate(size), size) if size else None
    return Launch(tensors, pool)


def run_steps(steps: TileSteps) -> None:
    """All steps of a tiled launch, on this thread."""
    device, temporaries = steps.tiler.kernel.device, []

    def allocate(size_bytes: int) -> int:
        temporaries.append(device.allocate(size_bytes))
        return temporaries[-1]

    steps.allocate(allocate)
    steps.run(0, steps.addresses, lambda kernel, *at: device.executor.run(kernel.link_at(*at)))
    for address in temporaries:
        device.free(address)


def outcome(device: Device, args: Sequence[Arg], launch: Launch, plan: TilePlan | None) -> Outcome:
    written = [k for k, arg in enumerate(args) if arg.role is not Role.INPUT]
    return Outcome(
        tuple(np.array(DmaEngine(device).to_host(launch.arguments[k]).storage) for k in written),
        tuple(device.bytes_of(launch.arguments[k]).copy() for k in written),
        plan,
    )


def run_whole(device: Device, built: Built, inputs: Sequence[Array]) -> Outcome:
    """One pass of a kernel built for the whole shape."""
    device.reset()
    launch = launch_of(device, built, built.args, inputs)
    Kernel(built.bundle, device).launch(launch)
    return outcome(device, built.args, launch, None)


def run_tiled(
    device: Device,
    built: Built,
    args: Sequence[Arg],
    inputs: Sequence[Array],
    options: TilingOptions | None = None,
) -> Outcome:
    """A kernel built for a tile, on tensors ``args``."""
    device.reset()
    launch = launch_of(device, built, args, inputs)
    kernel = Tiler(Kernel(built.bundle, device), built.arguments)
    plan = kernel.plan(launch, options)
    run_steps(TileSteps(kernel, launch, plan))
    return outcome(device, args, launch, plan)


def plan_for(built: Built, args: Sequence[Arg], options: TilingOptions | None = None) -> TilePlan:
    """The plan alone, without a device."""
    actual = [
        DeviceTensor(f"t{k}", 0, a.layout, a.dtype, a.shape, contiguous_strides(a.shape))
        for k, a in enumerate(args)
    ]
    uses = operand_uses(built.bundle, built.arguments.pool_bytes > 0)
    return plan_tiles(expected_tensors(built.arguments, uses), actual, options)


def mm(m: int, k: int, n: int, symbolic: bool = True, **splits: int) -> Built:
    return kernels.mm({"m": m, "k": k, "n": n}, splits, symbolic)


def fresh_launch(device: Device, whole: Built, seed: int = 0) -> Launch:
    device.reset()
    return launch_of(device, whole, whole.args, random_inputs(whole.args, seed))


def inputs_of(built: Built) -> list[Array]:
    return random_inputs(built.args, 0)
