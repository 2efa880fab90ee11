"""Tiled launches: a kernel compiled for a tile, run over larger tensors.

`kernel_dims` says which dims of a kernel's arguments go together, `tile_plan` makes the list of
tiles, `retarget` gives operations the larger tensors' pitches, `tile_steps` says what happens in
which order, `execute` holds it together and runs it.
"""

from spyre.runtime.tiling.execute import TiledLaunch, TilingKernel, execute_tiles
from spyre.runtime.tiling.kernel_dims import expected_tensors
from spyre.runtime.tiling.launch_tensors import ActualTensor, ExpectedTensor, KernelDim
from spyre.runtime.tiling.options import Reduction, Remainder, TilingOptions
from spyre.runtime.tiling.tile_plan import TilePlan, plan_tiles

__all__ = [
    "ActualTensor",
    "ExpectedTensor",
    "KernelDim",
    "Reduction",
    "Remainder",
    "TilePlan",
    "TiledLaunch",
    "TilingKernel",
    "TilingOptions",
    "execute_tiles",
    "expected_tensors",
    "plan_tiles",
]
