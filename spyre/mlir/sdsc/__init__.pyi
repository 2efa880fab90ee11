from .codec import (
    decode_sdsc as decode_sdsc,
    encode_sdsc as encode_sdsc,
    json_path as json_path,
)
from .inspection import (
    MAX_CORES as MAX_CORES,
    Inspection as Inspection,
    inspect_operation as inspect_operation,
    inspect_sdsc as inspect_sdsc,
)
from .reader import read_operation as read_operation
from .structs import Sdsc as Sdsc
from .writer import write_operation as write_operation
