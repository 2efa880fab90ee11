"""A run beside the reference values of its function: the first execute that deviates.

`reference_tiles` finds tiles in the values of a function's operations, `operand_tiles` reads the
operands of executes, `search` checks a run execute by execute.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
