"""Tiled tensor layouts: how a host tensor lies in sticks on the card, and who goes where.

A leaf above `spyre.dtypes`: `tensor_layout` holds `SpyreTensorLayout` and the default layout
algorithm, `geometry` derives from a layout which host element each device position holds,
`conversion` says a copy as loop nests, which the device executes, `reference` moves whole tensors
position by position, slowly and obviously; descriptors and copies are tested against it.
Rules: runtime reference §1-3.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
