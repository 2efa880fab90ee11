from .address_checks import address_findings as address_findings
from .first_divergence import (
    Deviation as Deviation,
    FirstDivergence as FirstDivergence,
)
from .mismatch import (
    deviation_object as deviation_object,
    map_lines as map_lines,
    mismatch_section as mismatch_section,
    verdict_lines as verdict_lines,
)
from .number_modes import (
    ExecuteDifference as ExecuteDifference,
    NumericsReport as NumericsReport,
    OutputDifference as OutputDifference,
    Verdict as Verdict,
    WorstElement as WorstElement,
    compare_numerics as compare_numerics,
)
from .tiles import (
    Breakpoint as Breakpoint,
    ReferenceValue as ReferenceValue,
    is_constant as is_constant,
    match_outputs as match_outputs,
)
