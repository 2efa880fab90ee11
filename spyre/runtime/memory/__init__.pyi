from .allocator import (
    PROGRAM as PROGRAM,
    AllocationDirective as AllocationDirective,
    AllocationIndex as AllocationIndex,
    DeviceStorage as DeviceStorage,
    FlexAllocator as FlexAllocator,
    ProgramMemory as ProgramMemory,
    SpyreTensor as SpyreTensor,
    VirtualAddress as VirtualAddress,
)
from .flex_mode import (
    first_device as first_device,
    visible_devices as visible_devices,
)
