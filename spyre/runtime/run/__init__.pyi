from .replay import (
    bind_launch as bind_launch,
    compare_with_case as compare_with_case,
    output_place as output_place,
    place_buffers as place_buffers,
    read_output as read_output,
    run_case as run_case,
)
from .result import (
    ExecuteReport as ExecuteReport,
    PlacedArgument as PlacedArgument,
    RunResult as RunResult,
)
from .session import (
    BundleLike as BundleLike,
    RunOptions as RunOptions,
    Session as Session,
    placed as placed,
    run as run,
    session_of as session_of,
)
