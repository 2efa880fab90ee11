from .collectives import (
    ALGORITHMS as ALGORITHMS,
    CollectiveRecord as CollectiveRecord,
    Communicator as Communicator,
)
from .memory import join_processes as join_processes
from .transport import (
    CollectiveError as CollectiveError,
    Deadline as Deadline,
    MessageTransport as MessageTransport,
    Pending as Pending,
    Transport as Transport,
    agree_on_name as agree_on_name,
    padded as padded,
    text_of as text_of,
)
