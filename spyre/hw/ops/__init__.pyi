from .elementwise import (
    CARD_FORMS as CARD_FORMS,
    CODE_FORMS as CODE_FORMS,
    OPCODE as OPCODE,
    OPCODES as OPCODES,
    Category as Category,
    Family as Family,
    OpDefinition as OpDefinition,
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
    REFUSED as REFUSED,
    SPEC_NAMES as SPEC_NAMES,
    find_op as find_op,
)
