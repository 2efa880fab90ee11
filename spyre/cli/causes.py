"""Why a run went wrong: what its addresses show, and what a sanitizer sees in a second run.

Asked for wherever outputs differ or the card faulted, so nobody has to know which option would
have told. No numba is imported to judge addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spyre.cli.options import Options
from spyre.errors import Finding, Severity, SpyreError
from spyre.runtime.arguments import parse_tensor_spec, read_arguments
from spyre.runtime.cases import case_directory, read_case

if TYPE_CHECKING:
    from spyre.runtime.program import LoweredBundle

Load = Callable[[str], "LoweredBundle"]


def address_findings(options: Options, load: Load, is_wrong: bool = False) -> tuple[Finding, ...]:
    """Tiles that contradict the layouts of the arguments, the likeliest cause first.

    ``load`` gives the bundle in a directory. ``is_wrong``: its outputs are. SpyreErrors of reading
    the bundle and its arguments.
    """
    from spyre.diagnose import check_addresses
    from spyre.runtime.tracing import bundle_launches, case_launches

    directory = case_directory(options.path)
    if directory is not None and not is_bundle_run(options):
        spec = read_case(directory).spec
        launches = case_launches(spec, lambda name: load(str(directory / name)))
        return check_addresses(launches, is_wrong)
    values, shapes = dict(options.values), [parse_tensor_spec(text) for text in options.shapes]
    bundle = load(options.path)
    arguments = read_arguments(bundle, values, shapes, dict(options.strides), dict(options.aliases))
    return check_addresses(bundle_launches(bundle, arguments, values), is_wrong)


def is_bundle_run(options: Options) -> bool:
    """True if a directory with a case.json is to be run as the one bundle it also is."""
    return bool(options.inputs or options.expected or options.shapes)


def causes_of_difference(
    options: Options, sanitized: Callable[[], tuple[Finding, ...]]
) -> tuple[Finding, ...]:
    """Findings that may explain why outputs differ, the likeliest cause first.

    Wrong tiles come first: what a sanitizer sees, as memory that nobody wrote, follows from them.
    ``sanitized`` runs the same again with a sanitizer.
    """
    from spyre.runtime.program import load_source

    by_address = address_findings(options, load_source, is_wrong=True)
    told = {finding.code for finding in by_address}
    others = [finding for finding in sanitized() if finding.code not in told]
    others.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    return (*by_address, *others)


def causes_of_fault(options: Options, error: SpyreError) -> tuple[Finding, ...]:
    """What may explain that the card faulted, or computed other numbers than its reference."""
    from spyre.runtime.program import load_source

    return (*address_findings(options, load_source, is_wrong=True), *error.observed)


def findings_before(error: SpyreError) -> tuple[Finding, ...]:
    """What a sanitized run that ended in ``error`` had found until then."""
    return (*error.observed, error.finding)
