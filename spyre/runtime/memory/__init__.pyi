from .allocator import (
    PROGRAM as PROGRAM,
    AllocationDirective as AllocationDirective,
    AllocationIndex as AllocationIndex,
    FlexAllocator as FlexAllocator,
    VirtualAddress as VirtualAddress,
)
from .flex_mode import (
    first_device as first_device,
    visible_devices as visible_devices,
)
from .storage import (
    DeviceStorage as DeviceStorage,
    ProgramMemory as ProgramMemory,
    SpyreTensor as SpyreTensor,
)
