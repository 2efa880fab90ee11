from .kernel import (
    Kernel as Kernel,
)
from .launch import (
    Launch as Launch,
    LaunchSignature as LaunchSignature,
    PoolBuffer as PoolBuffer,
)
from .runners import (
    UNLABELLED as UNLABELLED,
    ExecutedLaunch as ExecutedLaunch,
    Runner as Runner,
    run_recorded as run_recorded,
    timed_runner as timed_runner,
)
