from .collectives import (
    LinkCounts as LinkCounts,
    link_counts as link_counts,
)
from .files import (
    check_target as check_target,
    compare_profiles as compare_profiles,
    comparison_object as comparison_object,
    comparison_table as comparison_table,
    read_kept_run as read_kept_run,
)
from .profile import (
    FallbackTime as FallbackTime,
    MachineLike as MachineLike,
    Profile as Profile,
    machine_of as machine_of,
    profile as profile,
    profile_of_recording as profile_of_recording,
)
from .roofline import check_roofline_file as check_roofline_file
from .table import summary_lines as summary_lines
from .trace import modelled_events as modelled_events
