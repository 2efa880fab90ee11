from .choose import (
    automatic_groups as automatic_groups,
)
