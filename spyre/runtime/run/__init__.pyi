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
    ExecuteReport as ExecuteReport,
    PlacedArgument as PlacedArgument,
    PlacedRun as PlacedRun,
    RunResult as RunResult,
    Session as Session,
    run as run,
    session_of as session_of,
)
from .tiles import (
    ELEMENTS as ELEMENTS,
    TilePointer as TilePointer,
    Traces as Traces,
    traced_function as traced_function,
)
