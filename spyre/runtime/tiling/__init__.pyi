from .execute import (
    TiledLaunch as TiledLaunch,
    TileSteps as TileSteps,
    TilingKernel as TilingKernel,
    temporaries_of as temporaries_of,
)
from .tile_checks import (
    Reduction as Reduction,
    Remainder as Remainder,
    TilingOptions as TilingOptions,
)
from .tile_plan import (
    TilePlan as TilePlan,
)
