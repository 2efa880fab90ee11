from .builder import (
    SpyreKernel as SpyreKernel,
    target_of as target_of,
)
from .operands import (
    HostBuffer as HostBuffer,
    OperandRead as OperandRead,
    argument_view as argument_view,
    reads_of as reads_of,
    storage_order as storage_order,
    strided_view as strided_view,
)
from .planning import (
    PlannedKernel as PlannedKernel,
)
