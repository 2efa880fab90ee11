"""Operations without a kernel on the cores, which run on the CPU or are refused."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
