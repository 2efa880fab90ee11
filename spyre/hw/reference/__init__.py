"""The slow, obvious reference implementation: one operation executed in numpy, element by element.

Nothing here knows of plans, loop nests, tables or kernels. `addresses` is the address rule of the
SDSC format, `definitions` the operations as one reads them, `families` what the cores of one
execute do together. Tests run reference and engine on two memories and compare every byte.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
