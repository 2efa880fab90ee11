from .agreement import (
    NOT_COMPARABLE as NOT_COMPARABLE,
    agreement_of as agreement_of,
    decoded as decoded,
    sum_noise as sum_noise,
    ulp_distance as ulp_distance,
)
from .execution import (
    Execution as Execution,
    IndexOutOfRange as IndexOutOfRange,
    Memory as Memory,
    element_offsets as element_offsets,
)
from .families import run_reference as run_reference
