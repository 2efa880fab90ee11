from .restickify import (
    restickify as restickify,
)
from .runs import (
    PROPAGATED_KERNELS as PROPAGATED_KERNELS,
    OperationRun as OperationRun,
    host_buffer as host_buffer,
    propagate_layouts as propagate_layouts,
    remove_dead_code as remove_dead_code,
    runs_of as runs_of,
)
