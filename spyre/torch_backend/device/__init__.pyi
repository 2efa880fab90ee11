from .cards import (
    _exchange_device as _exchange_device,
    _maybe_exchange_device as _maybe_exchange_device,
    card_at as card_at,
    card_of as card_of,
    check_index as check_index,
    current_device as current_device,
    current_if_used as current_if_used,
    device_count as device_count,
    different_devices as different_devices,
    get_device_capability as get_device_capability,
    get_device_properties as get_device_properties,
    is_available as is_available,
    is_initialized as is_initialized,
    is_on_card as is_on_card,
    made_cards as made_cards,
    reset as reset,
    set_device as set_device,
    synchronize as synchronize,
    usable_cores as usable_cores,
)
from .dtypes import (
    DTYPES as DTYPES,
    NAMES as NAMES,
    PARTS as PARTS,
    check_int64 as check_int64,
    doubles_on_host as doubles_on_host,
    name_of as name_of,
    warn_of_downcast as warn_of_downcast,
    warn_user as warn_user,
)
from .memory import (
    allocate_memory as allocate_memory,
    empty_cache as empty_cache,
    get_memory_info as get_memory_info,
    memory_stats as memory_stats,
    out_of_memory_as_torch_says as out_of_memory_as_torch_says,
    reset_accumulated_memory_stats as reset_accumulated_memory_stats,
    reset_peak_memory_stats as reset_peak_memory_stats,
    tensor_memory as tensor_memory,
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
    current_stream as current_stream,
    follow_all_streams as follow_all_streams,
    set_stream as set_stream,
)
