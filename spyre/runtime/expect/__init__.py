"""A run beside the values its function should have: the first execute that deviates.

`known` finds tiles in the values of a function's operations, `tiles` reads what executes take and
write, `first_wrong` walks a run execute by execute.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
