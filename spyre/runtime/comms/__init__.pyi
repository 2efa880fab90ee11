from .algorithms import (
    ALGORITHMS as ALGORITHMS,
    Algorithm as Algorithm,
)
from .collectives import (
    CollectiveRecord as CollectiveRecord,
    Communicator as Communicator,
)
from .memory import (
    SharedMemory as SharedMemory,
    join_processes as join_processes,
)
from .messages import (
    Messages as Messages,
    MessageTransport as MessageTransport,
    Pending as Pending,
)
from .transport import (
    CollectiveError as CollectiveError,
    Deadline as Deadline,
    Store as Store,
    Transport as Transport,
)
