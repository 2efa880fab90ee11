"""Planners: one SDSC and the start addresses of its cores become plan-table rows.

A file per unit or kind of movement; `core_plan` picks the family from the op table and runs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
