"""What changes a graph's ir.Operations before they are scheduled; `order` says when what runs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
