from .accesses import (
    accesses_of as accesses_of,
    by_graph_input as by_graph_input,
    dims_by_variable as dims_by_variable,
    extents_of as extents_of,
    is_loop_operation as is_loop_operation,
    layout_of as layout_of,
    names_read as names_read,
    propagate_named_dims as propagate_named_dims,
)
from .coarse_tile import (
    coarse_tile as coarse_tile,
)
from .full_buffers import (
    FullBuffer as FullBuffer,
    register as register,
)
from .groups import (
    TileGroup as TileGroup,
    TileLevel as TileLevel,
    assign_dim_hints as assign_dim_hints,
    hints_to_coarse_tile_groups as hints_to_coarse_tile_groups,
    is_hinted as is_hinted,
    shares_of as shares_of,
)
