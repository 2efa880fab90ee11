from .case import (
    CASE_FILE as CASE_FILE,
    Case as Case,
    CaseBuffer as CaseBuffer,
    CaseFile as CaseFile,
    CaseLaunch as CaseLaunch,
    CaseOutput as CaseOutput,
    CaseTolerance as CaseTolerance,
    case_directory as case_directory,
    check_dump_directory as check_dump_directory,
    read_case as read_case,
    with_tolerances as with_tolerances,
    write_dump as write_dump,
)
