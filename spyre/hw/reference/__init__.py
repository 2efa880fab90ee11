"""The slow, obvious reference implementation: one operation executed in numpy, element by element.

It does not depend on plans, loop nests, tables or kernels. `execution` has the address rule of the
SDSC format, `definitions` the mathematics of operations, `families` the joint work of the cores of
one execute. Tests run reference and engine on two memories and compare every byte.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
