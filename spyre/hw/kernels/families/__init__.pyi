from .elementwise import (
    add_all as add_all,
    combine as combine,
)
