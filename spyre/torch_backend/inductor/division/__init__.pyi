from .plan import (
    DISTRIBUTION as DISTRIBUTION,
    MATMUL_COST as MATMUL_COST,
    SPAN as SPAN,
    WorkDivision as WorkDivision,
    core_slices as core_slices,
    divide_op as divide_op,
    divisions_text as divisions_text,
    with_division as with_division,
)
