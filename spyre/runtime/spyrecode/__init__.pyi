from .code_directory import (
    CodeDirectory as CodeDirectory,
    read_code_directory as read_code_directory,
)
from .commands import (
    ComputeOnDevice as ComputeOnDevice,
    ComputeOnHost as ComputeOnHost,
    DataTransfer as DataTransfer,
    Direction as Direction,
    ExecutionCommand as ExecutionCommand,
)
from .compile import (
    compile_directory as compile_directory,
    compile_for_frontend as compile_for_frontend,
)
from .init_binary import (
    format_header as format_header,
    holds_program as holds_program,
    unpack_bundle as unpack_bundle,
)
from .spyrecode_file import SPYRECODE_FILE as SPYRECODE_FILE
