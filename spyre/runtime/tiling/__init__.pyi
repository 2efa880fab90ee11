from .execute import (
    TiledLaunch as TiledLaunch,
    TileSteps as TileSteps,
    TilingKernel as TilingKernel,
    temporaries_of as temporaries_of,
)
from .tile_plan import (
    TilePlan as TilePlan,
)
from .tile_steps import (
    Compute as Compute,
)
