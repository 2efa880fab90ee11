"""Tiled tensor layouts: the arrangement of a host tensor in sticks on the card.

`tensor_layout` contains `SpyreTensorLayout` and the default layout algorithm, `geometry` maps
device dims to host dims, `conversion` describes a copy as loop nests and finds elements in them,
`device_view` the elements of a view of a tensor on the card, and `access_map` is the form of all
these nests. Rules: runtime reference §1-3.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
