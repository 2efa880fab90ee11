"""Tiled launches: a kernel compiled for a tile, run over larger tensors.

`kernel_dims` says which dims of a kernel's arguments go together, `tile_plan` makes the list of
tiles, `retarget` gives operations the larger tensors' pitches, `tile_steps` says what happens in
which order, `execute` holds it together and runs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
