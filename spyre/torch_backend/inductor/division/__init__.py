"""Work division: how the cores share an operation's iteration (hardware reference §4.1).

`divide_op` runs the passes. Everything is a pure function over frozen data, so all of it may be
used from several threads.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
