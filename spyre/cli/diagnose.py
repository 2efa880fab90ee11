"""``--check`` and ``--explain``: what can be said about a bundle or a case without running it.

No numba is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spyre.cli.options import Options
from spyre.errors import Finding, Severity, SpyreError, ValidationError, has_errors
from spyre.runtime.cases import case_directory, read_case

if TYPE_CHECKING:
    from spyre.mlir.bundle import Bundle


@dataclass(frozen=True)
class Diagnosis:
    """What ``--check`` and ``--explain`` found. ``explanations``: text per SDSC file;
    ``pictures``: files that were drawn.
    """

    path: str
    findings: tuple[Finding, ...]
    explanations: tuple[tuple[str, str], ...] = ()
    pictures: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """2 if there is an error."""
        return 2 if has_errors(self.findings) else 0


def diagnose_and_report(options: Options) -> int:
    """Diagnose a bundle or case and print what was found; returns the exit code."""
    diagnosis = diagnose(options)
    if options.svg is not None and not has_errors(diagnosis.findings):
        diagnosis = replace(diagnosis, pictures=_draw(options, Path(options.svg)))
    form = "json" if options.json else options.format
    if form == "json":
        from spyre.cli.json_report import diagnosis_object, print_object

        print_object(diagnosis_object(diagnosis))
    elif form == "sarif":
        from spyre.cli.exchange import sarif_object
        from spyre.cli.json_report import print_text_of

        print_text_of(sarif_object(diagnosis.findings))
    elif form == "junit":
        from spyre.cli.exchange import junit_text

        print(junit_text(diagnosis.path, diagnosis.findings))
    else:
        from spyre.cli.text_report import print_diagnosis

        print_diagnosis(diagnosis, options)
    return diagnosis.exit_code


def diagnose(options: Options) -> Diagnosis:
    """All findings of a bundle, or of every kernel of a case."""
    directory = case_directory(options.path)
    if directory is None or (directory / "bundle.mlir").is_file():
        return diagnose_bundle(options.path, options)
    try:
        launches = read_case(directory).spec.launches
    except SpyreError as error:
        return Diagnosis(options.path, (error.finding,))
    bundles = dict.fromkeys(launch.bundle for launch in launches)
    diagnoses = [diagnose_bundle(str(directory / name), options, False) for name in bundles]
    explanations = tuple(
        (f"{name}/{sdsc}", text)
        for name, diagnosis in zip(bundles, diagnoses, strict=True)
        for sdsc, text in diagnosis.explanations
    )
    findings = tuple(f for d in diagnoses for f in d.findings)
    if options.check and not has_errors(findings):
        findings = (*_address_findings(options), *findings)
    return Diagnosis(options.path, findings, explanations)


def diagnose_bundle(path: str, options: Options, addresses: bool = True) -> Diagnosis:
    """All findings of a bundle, those that keep it from being read included.

    ``addresses``: also judge its addresses, which in a case takes all of its kernels.
    """
    from spyre.mlir.bundle import load_bundle

    try:
        bundle = load_bundle(path)
    except ValidationError as error:
        return Diagnosis(path, error.findings)
    except SpyreError as error:
        return Diagnosis(path, (error.finding,))
    findings = bundle.check()
    if has_errors(findings):  # what is wrong means nothing that could be explained
        return Diagnosis(path, findings)
    if options.check:
        judged = _address_findings(replace(options, path=path), bundle) if addresses else ()
        findings = (*judged, *findings, *_argument_findings(bundle, options))
    else:
        findings = ()
    return Diagnosis(path, findings, _explanations(bundle) if options.explain else ())


def _argument_findings(bundle: Bundle, options: Options) -> tuple[Finding, ...]:
    """What a run would meet before it starts: operations and arguments that do not fit."""
    from spyre.hw.plans import check_operation
    from spyre.runtime.arguments import arrangement_findings, read_arguments

    findings: list[Finding] = []
    for name in bundle.sdscs:
        try:
            findings += check_operation(bundle.operation(name))
        except SpyreError as error:
            findings.append(replace(error.finding, severity=Severity.WARNING))
    try:
        arguments = read_arguments(bundle, dict(options.values))
        findings += arguments.findings
        findings += arrangement_findings(bundle, arguments, dict(options.values))
    except SpyreError as error:
        findings.append(error.finding)
    return tuple(dict.fromkeys(findings))


def _address_findings(options: Options, bundle: Bundle | None = None) -> tuple[Finding, ...]:
    """What the addresses of the bundle (if it is one and read already) or case show; nothing where
    it cannot be read, which other findings say.
    """
    from spyre.cli.causes import address_findings
    from spyre.mlir.bundle import load_bundle

    def load(path: str) -> Bundle:
        known = bundle is not None and Path(path) == bundle.directory
        return bundle if bundle is not None and known else load_bundle(path)

    try:
        return address_findings(options, load)
    except SpyreError:
        return ()


def _draw(options: Options, directory: Path) -> tuple[str, ...]:
    """The files of the program's pictures; errors as of `write_pictures` and of reading it."""
    from spyre.runtime.arguments import read_arguments
    from spyre.runtime.pictures import pictured_bundle, pictured_case, write_pictures
    from spyre.runtime.program import load_source

    case = case_directory(options.path)
    if case is None or (case / "bundle.mlir").is_file():
        bundle, values = load_source(options.path), dict(options.values)
        arguments = read_arguments(bundle, values)
        program = pictured_bundle(options.path, bundle, arguments, values)
    else:
        spec = read_case(case).spec
        program = pictured_case(options.path, spec, lambda name: load_source(str(case / name)))
    return tuple(str(path) for path in write_pictures(program, directory))


def _explanations(bundle: Bundle) -> tuple[tuple[str, str], ...]:
    from spyre.mlir.explain import explain_operation

    return tuple((name, str(explain_operation(bundle.operation(name)))) for name in bundle.sdscs)
