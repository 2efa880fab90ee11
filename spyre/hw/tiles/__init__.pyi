from .handlers import trace_function as trace_function
from .program import (
    TracedKernel as TracedKernel,
    TracedProgram as TracedProgram,
)
from .trace import PointerArgument as PointerArgument
from .values import FORMATS as FORMATS
