"""The sanitizer: an observer of launches that finds accesses a correct program does not make.

`checks` names what is looked for, `shadow` remembers who wrote every stick, `check_plan` makes the
tables of the compiled checks, `static_checks` is what needs no run, `cover` looks at the outputs,
`findings` are the reports, `sanitizer` holds it together.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
