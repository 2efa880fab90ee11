from .compiled import (
    CompiledBundle as CompiledBundle,
    LoweredBundle as LoweredBundle,
    LoweredProgram as LoweredProgram,
    compile_files as compile_files,
    digest_of as digest_of,
    files_of_bundle as files_of_bundle,
    read_bundle_files as read_bundle_files,
    require_bundle as require_bundle,
)
from .launch_spec import (
    DERIVED_EMITTER as DERIVED_EMITTER,
    LAUNCH_SPEC_FILE as LAUNCH_SPEC_FILE,
    POOL as POOL,
    SPYRE_CODE_DIRECTORY as SPYRE_CODE_DIRECTORY,
    VERSION as VERSION,
    ArgumentEntry as ArgumentEntry,
    LaunchSpec as LaunchSpec,
    Role as Role,
    SymbolKind as SymbolKind,
    find_launch_spec as find_launch_spec,
    format_launch_spec as format_launch_spec,
    owner_of as owner_of,
    parse_launch_spec as parse_launch_spec,
    read_launch_spec as read_launch_spec,
    require_no_size as require_no_size,
)
from .plan_cache import (
    load_compiled_files as load_compiled_files,
    load_source as load_source,
)
