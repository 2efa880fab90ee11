from .collectives import (
    CAVEAT as CAVEAT,
    CollectiveTime as CollectiveTime,
    bus_gbps as bus_gbps,
    collective_time as collective_time,
    fastest_time as fastest_time,
)
from .divisions import (
    CLOSE as CLOSE,
    Cores as Cores,
    RankedDivisions as RankedDivisions,
    Splits as Splits,
    candidates_of as candidates_of,
    cores_text as cores_text,
    division_text as division_text,
    divisors as divisors,
    product_counts as product_counts,
    ranked as ranked,
    splits_within as splits_within,
)
from .estimate import (
    Choice as Choice,
    ClassError as ClassError,
    Estimate as Estimate,
    Estimates as Estimates,
    ModelEstimate as ModelEstimate,
    estimate_file as estimate_file,
    estimate_model as estimate_model,
    machine_with as machine_with,
)
from .fit import fit as fit
from .machine import (
    MachineSpec as MachineSpec,
    default_machine as default_machine,
    load_machine as load_machine,
    machine_text as machine_text,
    make_machine as make_machine,
)
from .models import (
    TERMS_OF as TERMS_OF,
    Bound as Bound,
    Model as Model,
    OperationTime as OperationTime,
    copy_out_ns as copy_out_ns,
    kernel_ns as kernel_ns,
    mean_spread as mean_spread,
)
from .rows import (
    KernelRow as KernelRow,
    measured_rows as measured_rows,
    read_rows as read_rows,
)
from .tilings import (
    Tiling as Tiling,
    best_tiling as best_tiling,
    tiling_text as tiling_text,
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
