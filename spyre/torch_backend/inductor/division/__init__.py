"""Work division: how the cores share an operation's iteration space (hardware reference §4.1).

`divide_op` runs the passes. All functions are pure, so several threads may use them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
