"""The sanitizer: an observer of launches that finds accesses a correct program does not make.

`checks` names what is looked for, `shadow` remembers who wrote every stick, `check_plan` makes the
tables of the compiled checks, `static_checks` is what needs no run, `cover` looks at the outputs,
`findings` are the reports, `sanitizer` holds it together.
"""

from spyre.hw.sanitizer.checks import ALL_CHECKS, Check, parse_checks
from spyre.hw.sanitizer.findings import SanitizerFinding
from spyre.hw.sanitizer.sanitizer import Sanitizer

__all__ = ["ALL_CHECKS", "Check", "Sanitizer", "SanitizerFinding", "parse_checks"]
