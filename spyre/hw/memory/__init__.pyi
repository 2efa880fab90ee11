from .allocation_history import (
    AllocationHistory as AllocationHistory,
)
from .device_memory import (
    KEEP_BYTES as KEEP_BYTES,
    DeviceMemory as DeviceMemory,
    DeviceTensor as DeviceTensor,
    reserve as reserve,
)
from .dirty_ranges import (
    DirtyRanges as DirtyRanges,
    MemoryRange as MemoryRange,
)
from .regions import (
    PROGRAM_REGION as PROGRAM_REGION,
    TENSOR_REGIONS as TENSOR_REGIONS,
    RegionAllocator as RegionAllocator,
    RegionUsage as RegionUsage,
)
