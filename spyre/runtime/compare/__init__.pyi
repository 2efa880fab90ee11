from .executes import (
    ExecuteObserver as ExecuteObserver,
    ExecuteView as ExecuteView,
    MemoryWindow as MemoryWindow,
    Parts as Parts,
    element_coordinates as element_coordinates,
    execute_views as execute_views,
    execution_parts as execution_parts,
    operand_window as operand_window,
    output_elements as output_elements,
    run_parts as run_parts,
    stepping_runner as stepping_runner,
    writers as writers,
)
from .outputs import (
    EXACT as EXACT,
    Comparison as Comparison,
    Index as Index,
    OutputLocation as OutputLocation,
    StickWriter as StickWriter,
    Tolerance as Tolerance,
    compare as compare,
    default_tolerance as default_tolerance,
    describe_location as describe_location,
    format_comparison as format_comparison,
    last_writer as last_writer,
    require_equal_shapes as require_equal_shapes,
)
from .reference_check import (
    ReferenceCheck as ReferenceCheck,
    Verification as Verification,
)
