from .names import (
    SPEC_NAMES as SPEC_NAMES,
    Category as Category,
)
from .rules import (
    FATAL as FATAL,
    STANDARD as STANDARD,
    arrangement_faults as arrangement_faults,
    decode_constant as decode_constant,
    find_faults as find_faults,
    require_op as require_op,
    require_rules as require_rules,
    topk_dims as topk_dims,
)
from .table import (
    OPS as OPS,
    Family as Family,
    OpDefinition as OpDefinition,
    find_op as find_op,
)
