from .core_plan import (
    CorePlan as CorePlan,
    LinkedPart as LinkedPart,
    check_operation as check_operation,
    plan_operation as plan_operation,
    reduction_groups as reduction_groups,
)
from .normalise import (
    UniformPart as UniformPart,
    check_slices as check_slices,
    uniform_operations as uniform_operations,
)
