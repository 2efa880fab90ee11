from .executes import (
    ExecuteView as ExecuteView,
    MemoryWindow as MemoryWindow,
    element_coordinates as element_coordinates,
    execute_views as execute_views,
    operand_window as operand_window,
    output_elements as output_elements,
    writers as writers,
)
from .outputs import (
    DEFAULT_VERIFY_POINTS as DEFAULT_VERIFY_POINTS,
    EXACT as EXACT,
    Comparison as Comparison,
    Index as Index,
    OutputLocation as OutputLocation,
    StickWriter as StickWriter,
    Tolerance as Tolerance,
    Verification as Verification,
    compare as compare,
    default_tolerance as default_tolerance,
    describe_location as describe_location,
    format_comparison as format_comparison,
    last_writer_of_stick as last_writer_of_stick,
    require_equal_shapes as require_equal_shapes,
)
from .reference_check import (
    ReferenceCheck as ReferenceCheck,
)
from .stepping import (
    ExecuteObserver as ExecuteObserver,
    Parts as Parts,
    execution_parts as execution_parts,
    run_parts as run_parts,
    stepping_runner as stepping_runner,
)
