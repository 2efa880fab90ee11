"""What `torch.spyre` has, for type checkers and editors: ``import torch.spyre``."""

from spyre.torch_backend.device.cards import (
    SpyreDeviceProperties as SpyreDeviceProperties,
    _exchange_device as _exchange_device,
    _is_in_bad_fork as _is_in_bad_fork,
    _lazy_init as _lazy_init,
    _maybe_exchange_device as _maybe_exchange_device,
    can_device_access_peer as can_device_access_peer,
    current_device as current_device,
    device as device,
    device_count as device_count,
    device_of as device_of,
    get_device_capability as get_device_capability,
    get_device_name as get_device_name,
    get_device_properties as get_device_properties,
    init as init,
    is_available as is_available,
    is_bf16_supported as is_bf16_supported,
    is_initialized as is_initialized,
    reset as reset,
    set_device as set_device,
    synchronize as synchronize,
)
from spyre.torch_backend.device.dtypes import (
    set_downcast_warning as set_downcast_warning,
)
from spyre.torch_backend.device.memory import (
    empty_cache as empty_cache,
    get_memory_info as get_memory_info,
    max_memory_allocated as max_memory_allocated,
    max_memory_reserved as max_memory_reserved,
    mem_get_info as mem_get_info,
    memory_allocated as memory_allocated,
    memory_reserved as memory_reserved,
    memory_stats as memory_stats,
    memory_summary as memory_summary,
    reset_accumulated_memory_stats as reset_accumulated_memory_stats,
    reset_peak_memory_stats as reset_peak_memory_stats,
)
from spyre.torch_backend.device.random import (
    get_rng_state as get_rng_state,
    get_rng_state_all as get_rng_state_all,
    initial_seed as initial_seed,
    manual_seed as manual_seed,
    manual_seed_all as manual_seed_all,
    seed as seed,
    seed_all as seed_all,
    set_rng_state as set_rng_state,
    set_rng_state_all as set_rng_state_all,
)
from spyre.torch_backend.device.streams import (
    Event as Event,
    Stream as Stream,
    current_stream as current_stream,
    default_stream as default_stream,
    set_stream as set_stream,
    stream as stream,
)
from spyre.torch_backend.fallback import (
    fallback_seconds as fallback_seconds,
    fallbacks as fallbacks,
    reset_fallbacks as reset_fallbacks,
)
from spyre.torch_backend.inductor.hints import (
    declare_tensor_dim as declare_tensor_dim,
    name_tensor_dims as name_tensor_dims,
    spyre_hint as spyre_hint,
)
from spyre.torch_backend.ktir import (
    ktir as ktir,
)
from spyre.torch_backend.observe import (
    counting as counting,
    profile as profile,
    sanitizer_findings as sanitizer_findings,
    trace as trace,
)
from spyre.torch_backend.registration.autocast import (
    get_amp_supported_dtype as get_amp_supported_dtype,
)
from spyre.torch_backend.tensors.graphs import (
    SpyreGraph as SpyreGraph,
    graph as graph,
)
from spyre.torch_backend.tensors.layouts import (
    SpyreTensorLayout as SpyreTensorLayout,
)
