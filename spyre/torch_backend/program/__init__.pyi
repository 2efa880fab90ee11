from . import op_spec as op_spec
from .builder import (
    SCRATCH as SCRATCH,
    LiveBuffer as LiveBuffer,
    ProgramBuilder as ProgramBuilder,
    pack as pack,
)
from .compiled import (
    CompiledProgram as CompiledProgram,
    new_numbered_directory as new_numbered_directory,
    show_program as show_program,
    shows_programs as shows_programs,
)
from .emit import emit_over as emit_over, iterated as iterated, require_sdsc as require_sdsc
from .emitter import (
    CoreDivision as CoreDivision,
    IteratedOp as IteratedOp,
    IterationDim as IterationDim,
    ScratchpadPlace as ScratchpadPlace,
    core_split as core_split,
    cut as cut,
)
from .indexing import (
    MAX_ROWS as MAX_ROWS,
    cut_lanes as cut_lanes,
    gathered as gathered,
    join_lane as join_lane,
    joined as joined,
    largest as largest,
    off_lanes as off_lanes,
    other_lane as other_lane,
    running_sum as running_sum,
    stored_elements as stored_elements,
    wrapped_positions as wrapped_positions,
)
from .op_spec import (
    DeviceOp as DeviceOp,
    Ints as Ints,
    LoweringError as LoweringError,
    LoweringFunction as LoweringFunction,
    OpKind as OpKind,
    UnevenDivision as UnevenDivision,
    Value as Value,
    broadcast_sizes as broadcast_sizes,
    device_format as device_format,
    float_bits as float_bits,
    float_of as float_of,
    narrowed as narrowed,
    range_constants as range_constants,
    selected as selected,
    tile_of as tile_of,
)
from .operations import (
    MATMUL_STICK as MATMUL_STICK,
    ConstantArgument as ConstantArgument,
    DerivedOperations as DerivedOperations,
    Lowering as Lowering,
    NotRecorded as NotRecorded,
    current_recorder as current_recorder,
    is_padded as is_padded,
    recorded_by as recorded_by,
    result_lane as result_lane,
    scalar_view as scalar_view,
    store_result as store_result,
    with_constants as with_constants,
)
