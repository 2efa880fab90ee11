from .cards import (
    _exchange_device as _exchange_device,
    _maybe_exchange_device as _maybe_exchange_device,
    card_at as card_at,
    card_of as card_of,
    current_device as current_device,
    current_if_used as current_if_used,
    is_initialized as is_initialized,
    is_on_card as is_on_card,
    set_device as set_device,
    synchronize as synchronize,
)
from .dtypes import (
    DTYPES as DTYPES,
    NAMES as NAMES,
    check_int64 as check_int64,
    name_of as name_of,
    warn_of_downcast as warn_of_downcast,
)
from .errors import (
    warn_user as warn_user,
)
from .memory import (
    allocate_memory as allocate_memory,
    out_of_memory_as_torch_says as out_of_memory_as_torch_says,
    tensor_memory as tensor_memory,
)
from .properties import (
    usable_cores as usable_cores,
)
from .random import (
    SpyreGenerator as SpyreGenerator,
    cpu_generator as cpu_generator,
    drawing_from_card as drawing_from_card,
    is_random as is_random,
)
from .streams import (
    Event as Event,
    Stream as Stream,
    follow_all_streams as follow_all_streams,
)
