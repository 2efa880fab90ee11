"""One program in two number modes: what differs, and whether rounding explains it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
