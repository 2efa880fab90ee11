from .plan import (
    plan_scratchpad as plan_scratchpad,
    pool_offsets as pool_offsets,
    report_text as report_text,
    with_offsets as with_offsets,
)
