"""Kernels run as they are written, by Python and numpy: slow, at once, and with the same bits.

Small programs are run so while their kernels are compiled.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
