"""The sanitizer: an observer of launches that finds accesses a correct program does not make.

`findings` has the checks and their texts, `tables` the last writer of every stick and the tables of
the compiled checks, `static_checks` the checks that need no run. `sanitizer` is the observer, with
the findings of the compiled checks and of outputs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
