from .first_wrong import (
    Deviation as Deviation,
    ExecuteVerdict as ExecuteVerdict,
    FirstWrong as FirstWrong,
)
from .known import (
    KnownValue as KnownValue,
    is_constant as is_constant,
    placed_outputs as placed_outputs,
)
from .stepping import (
    Breakpoint as Breakpoint,
    Watcher as Watcher,
    watched as watched,
)
from .subject import (
    Subject as Subject,
    bundle_subject as bundle_subject,
    case_subject as case_subject,
)
from .tiles import (
    OperandTile as OperandTile,
)
