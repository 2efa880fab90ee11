"""The op table: what operations there are, what they need, and what the specification leaves
open.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
