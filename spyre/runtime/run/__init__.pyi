from .result import (
    ExecuteReport as ExecuteReport,
    PlacedArgument as PlacedArgument,
    RunResult as RunResult,
)
from .runs import (
    Run as Run,
    RunBuffer as RunBuffer,
    RunLaunch as RunLaunch,
    RunOptions as RunOptions,
    RunOutput as RunOutput,
    describe_run as describe_run,
    is_float as is_float,
    traced_executes as traced_executes,
)
from .session import (
    BundleLike as BundleLike,
    PlacedRun as PlacedRun,
    Session as Session,
    run as run,
    session_of as session_of,
)
