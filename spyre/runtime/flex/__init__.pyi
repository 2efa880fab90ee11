from .blocks import (
    ControlBlock as ControlBlock,
    MemoryRange as MemoryRange,
    RecordedBlock as RecordedBlock,
    SourceLines as SourceLines,
    SourcePlace as SourcePlace,
)
from .command_stream import (
    Command as Command,
    CommandStream as CommandStream,
    launch_of as launch_of,
    recorded_block_of as recorded_block_of,
)
from .device import (
    Devices as Devices,
    FlexDevice as FlexDevice,
    devices as devices,
    flex_device_of as flex_device_of,
)
from .loaded_kernel import LoadedKernel as LoadedKernel
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
from .steps import (
    JobPlan as JobPlan,
    JobWork as JobWork,
    LaunchPlan as LaunchPlan,
    bytes_to_device as bytes_to_device,
    bytes_to_host as bytes_to_host,
    device_copy_plan as device_copy_plan,
    to_device_plan as to_device_plan,
    to_host_plan as to_host_plan,
)
from .stream import (
    CapturedWork as CapturedWork,
    Event as Event,
    FlexStream as FlexStream,
    capture_error as capture_error,
)
