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
    with_options as with_options,
    with_tolerances as with_tolerances,
    write_dump as write_dump,
)
from .record import (
    RecordedRun as RecordedRun,
    launch_spec_file as launch_spec_file,
    record_case as record_case,
)
