"""Interpretation of kernels by Python and numpy: slow, without compilation, with the same bits.

Small programs are interpreted while their kernels are compiled.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
