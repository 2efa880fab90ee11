from .plan import (
    Surroundings as Surroundings,
    plan_scratchpad as plan_scratchpad,
)
from .pool import (
    plan_pool as plan_pool,
    pool_buffers as pool_buffers,
    with_allocations as with_allocations,
)
from .report import (
    report_text as report_text,
)
