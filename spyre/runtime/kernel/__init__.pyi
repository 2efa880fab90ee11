from .kernel import (
    Kernel as Kernel,
)
from .launch import (
    UNLABELLED as UNLABELLED,
    ExecutedLaunch as ExecutedLaunch,
    Launch as Launch,
    LaunchSignature as LaunchSignature,
    PoolBuffer as PoolBuffer,
    Reduction as Reduction,
    Remainder as Remainder,
    Runner as Runner,
    TilingOptions as TilingOptions,
    run_recorded as run_recorded,
    timed_runner as timed_runner,
)
