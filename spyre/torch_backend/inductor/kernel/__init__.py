"""One bundle under construction: from ir.Operations to device operations to a planned kernel."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
