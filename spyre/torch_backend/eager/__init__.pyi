from .compile import (
    Operand as Operand,
    ScalarOperand as ScalarOperand,
)
from .dispatch import (
    CONVERTED as CONVERTED,
)
from .factories import (
    cached_sequence as cached_sequence,
    converted as converted,
)
from .launch import (
    number_on_card as number_on_card,
    ready_buffer as ready_buffer,
    run as run,
    scratch_memory as scratch_memory,
)
from .masks import (
    is_number_of as is_number_of,
    triangle as triangle,
)
from .overlap import (
    refuse_traced_overlap as refuse_traced_overlap,
)
from .registry import (
    FUNCTIONAL_VARIANTS as FUNCTIONAL_VARIANTS,
    eager_kernels as eager_kernels,
)
from .scatter import (
    index_put_functional as index_put_functional,
)
