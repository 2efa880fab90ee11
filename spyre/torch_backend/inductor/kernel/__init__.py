"""One bundle under construction: ir.Operations to device operations to specs, divided and
placed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
