"""HTML pages, tables and SVG pictures, all made by one set of functions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
