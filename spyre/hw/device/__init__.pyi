from .combining import (
    OPERATORS as OPERATORS,
    Combiner as Combiner,
)
from .device import (
    Device as Device,
    Progress as Progress,
    warm_driver as warm_driver,
    warm_kernels as warm_kernels,
    warm_program as warm_program,
    warm_transfers as warm_transfers,
)
from .transfer import plan_transfer as plan_transfer
