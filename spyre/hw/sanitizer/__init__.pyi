from .findings import (
    UNWRITTEN_READ as UNWRITTEN_READ,
    Check as Check,
    CheckChoice as CheckChoice,
    SanitizerFinding as SanitizerFinding,
    parse_checks as parse_checks,
    uncovered_output as uncovered_output,
)
from .sanitizer import (
    Sanitizer as Sanitizer,
    check_cover as check_cover,
)
