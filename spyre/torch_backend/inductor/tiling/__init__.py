"""Coarse tiling: names of dims, hints, loops around groups of ir.Operation, loop scheduler nodes.

`dim_names` and `hints` are for users and load nothing of Inductor.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
