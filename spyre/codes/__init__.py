"""Every diagnostic code: titles (:mod:`.titles`), and per range what causes it and what helps.

`CODES` gives titles, `RECORDS` in :mod:`.explanations` everything, which errors have no use for and
therefore do not load. A code needs a title when it is first used; until cause and fix are written
they are empty, and a test lists the codes that lack them.
"""

from __future__ import annotations

from spyre.codes.titles import *  # noqa: F403
from spyre.codes.titles import CODES as CODES
