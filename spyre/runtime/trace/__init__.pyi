from .commands import (
    TimeAxis as TimeAxis,
    check_trace_file as check_trace_file,
    trace_events as trace_events,
    write_trace as write_trace,
)
from .events import (
    HBM_TRACK as HBM_TRACK,
    TraceEvent as TraceEvent,
    TraceProcess as TraceProcess,
    Track as Track,
    core_track as core_track,
    hbm_counters as hbm_counters,
    region_name as region_name,
)
