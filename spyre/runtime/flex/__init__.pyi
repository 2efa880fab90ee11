from .captured import (
    CapturedWork as CapturedWork,
    refusal as refusal,
)
from .command_stream import (
    Command as Command,
    CommandStream as CommandStream,
    launch_of as launch_of,
    noted_block_of as noted_block_of,
)
from .device import (
    Devices as Devices,
    FlexDevice as FlexDevice,
    devices as devices,
    flex_device_of as flex_device_of,
)
from .job import (
    ControlBlock as ControlBlock,
    JobPlan as JobPlan,
    LaunchPlan as LaunchPlan,
    MemoryRange as MemoryRange,
    NotedBlock as NotedBlock,
    bytes_to_device as bytes_to_device,
    bytes_to_host as bytes_to_host,
    device_copy_plan as device_copy_plan,
    to_device_plan as to_device_plan,
    to_host_plan as to_host_plan,
)
from .loaded_kernel import (
    LoadedKernel as LoadedKernel,
    load_kernel as load_kernel,
)
from .origin import (
    LaunchOrigin as LaunchOrigin,
    SourcePlace as SourcePlace,
)
from .prepare import (
    launch_jobplan as launch_jobplan,
    launch_kernel as launch_kernel,
    load_code as load_code,
    prepare_kernel as prepare_kernel,
)
from .scheduling import (
    Engine as Engine,
    Work as Work,
)
from .stream import (
    BlockingStream as BlockingStream,
    Event as Event,
    FlexStream as FlexStream,
)
