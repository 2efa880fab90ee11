from .kernel import (
    UNLABELLED as UNLABELLED,
    ExecutedLaunch as ExecutedLaunch,
    Kernel as Kernel,
    Runner as Runner,
    run_recorded as run_recorded,
    timed_runner as timed_runner,
)
from .launch import (
    Launch as Launch,
    LaunchSignature as LaunchSignature,
    PoolBuffer as PoolBuffer,
)
