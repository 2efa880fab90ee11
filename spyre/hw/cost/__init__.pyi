from .collectives import (
    CAVEAT as CAVEAT,
    CollectiveTime as CollectiveTime,
    bus_gbps as bus_gbps,
    collective_time as collective_time,
    fastest_time as fastest_time,
)
from .machine import (
    MachineSpec as MachineSpec,
    default_machine as default_machine,
    load_machine as load_machine,
)
from .models import (
    Bound as Bound,
    Model as Model,
    OperationTime as OperationTime,
    ideal_pt_ns as ideal_pt_ns,
    kernel_ns as kernel_ns,
    sfu_ns as sfu_ns,
)
from .timeline import (
    Overlap as Overlap,
    Resource as Resource,
    Span as Span,
    Task as Task,
    TaskKind as TaskKind,
    Timeline as Timeline,
    VirtualClock as VirtualClock,
    simulate as simulate,
)
