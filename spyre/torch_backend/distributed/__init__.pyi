from .group import (
    CardGroup as CardGroup,
    close_all as close_all,
    close_group as close_group,
    live_groups as live_groups,
    observing as observing,
)
from .operators import (
    register_operators as register_operators,
)
