from .comparison import (
    ExecuteDifference as ExecuteDifference,
    NumericsReport as NumericsReport,
    OutputDifference as OutputDifference,
    Verdict as Verdict,
    WorstElement as WorstElement,
    compare_numerics as compare_numerics,
)
from .loaded_program import (
    LoadedProgram as LoadedProgram,
    load_bundle_program as load_bundle_program,
    load_case_program as load_case_program,
)
