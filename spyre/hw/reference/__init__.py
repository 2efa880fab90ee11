"""The slow, obvious reference implementation: one operation executed in numpy, element by element.

Nothing here knows of plans, loop nests, tables or kernels. `addresses` is the address rule of the
SDSC format, `definitions` the operations as one reads them, `families` what the cores of one
execute do together. Tests run reference and engine on two memories and compare every byte.
"""

from spyre.hw.reference.execution import Execution, IndexOutOfRange, Memory, literal_starts
from spyre.hw.reference.families import run_reference

__all__ = ["Execution", "IndexOutOfRange", "Memory", "literal_starts", "run_reference"]
