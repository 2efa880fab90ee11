from .counts import (
    CostClass as CostClass,
    Counters as Counters,
    OperationCounts as OperationCounts,
    ProductShape as ProductShape,
    is_broadcast as is_broadcast,
    product_dims as product_dims,
    product_shape as product_shape,
)
from .execute import (
    CORE_COLUMNS as CORE_COLUMNS,
    CORE_TRAFFIC as CORE_TRAFFIC,
    CORE_WORK as CORE_WORK,
    count_cores as count_cores,
    count_execute as count_execute,
    count_operation as count_operation,
    product_of as product_of,
)
from .program import (
    NO_ACCESSES as NO_ACCESSES,
    UNLABELLED as UNLABELLED,
    Dispatches as Dispatches,
    ExecuteLabels as ExecuteLabels,
    Executions as Executions,
    LaunchCounts as LaunchCounts,
    LxAccesses as LxAccesses,
    LxLifetimes as LxLifetimes,
    ProgramView as ProgramView,
    StatementView as StatementView,
    lifetimes as lifetimes,
    live_bytes as live_bytes,
)
