from .comparison import (
    ExecuteDifference as ExecuteDifference,
    NumericsReport as NumericsReport,
    OutputDifference as OutputDifference,
    Verdict as Verdict,
    WorstElement as WorstElement,
    compare_numerics as compare_numerics,
)
