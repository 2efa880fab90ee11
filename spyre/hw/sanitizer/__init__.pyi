from .findings import (
    Check as Check,
    CheckChoice as CheckChoice,
    SanitizerFinding as SanitizerFinding,
    parse_checks as parse_checks,
)
from .run_findings import (
    ExpectedOutput as ExpectedOutput,
    check_cover as check_cover,
)
from .sanitizer import (
    Sanitizer as Sanitizer,
)
