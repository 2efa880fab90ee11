from .kernel import (
    ExecutedLaunch as ExecutedLaunch,
    Kernel as Kernel,
    Launch as Launch,
    LaunchSignature as LaunchSignature,
    PoolBuffer as PoolBuffer,
    Runner as Runner,
    run_recorded as run_recorded,
    timed_runner as timed_runner,
)
