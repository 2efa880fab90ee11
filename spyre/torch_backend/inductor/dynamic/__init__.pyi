from .graph import (
    DynamicGraph as DynamicGraph,
)
from .tiles import (
    CollectedKernels as CollectedKernels,
    RowTile as RowTile,
    collecting as collecting,
)
