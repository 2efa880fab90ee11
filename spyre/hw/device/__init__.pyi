from .combining import (
    OPERATORS as OPERATORS,
    Combiner as Combiner,
)
from .device import (
    Device as Device,
    warm_driver as warm_driver,
    warm_kernels as warm_kernels,
    warm_transfers as warm_transfers,
)
from .executor import (
    Progress as Progress,
)
from .transfer import (
    HostView as HostView,
    plan_transfer as plan_transfer,
)
