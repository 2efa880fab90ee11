"""``--check`` and ``--explain``: findings on a bundle or a case without running it.

They are printed as text, as JSON, as SARIF 2.1.0 for code review, as JUnit XML for CI, or as
annotations of GitHub or GitLab. No numba is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

import spyre
from spyre import config
from spyre.cli.options import DiagnoseOptions
from spyre.errors import (
    DeviceLocation,
    Finding,
    JsonLocation,
    Location,
    Severity,
    SourceLocation,
    SpyreError,
    ValidationError,
    has_errors,
)
from spyre.runtime.arguments import parse_tensor_spec
from spyre.runtime.cases import Case, case_directory, read_case

if TYPE_CHECKING:
    from spyre.mlir.bundle import Bundle
    from spyre.mlir.operation import Operation
    from spyre.runtime.program import LoweredBundle


class Diagnosis(msgspec.Struct, frozen=True):
    """Findings of ``check`` and ``explain``. ``explanations``: text per SDSC file; ``pictures``:
    files that were drawn; ``fail_on``: severity that makes the exit code other than 0.
    """

    path: str
    findings: tuple[Finding, ...]
    explanations: tuple[tuple[str, str], ...] = ()
    pictures: tuple[str, ...] = ()
    fail_on: str = Severity.ERROR

    @property
    def exit_code(self) -> int:
        """2 if there is an error; 1 for warnings if these are to fail."""
        if has_errors(self.findings):
            return 2
        return int(bool(self.findings) and self.fail_on == Severity.WARNING)


def diagnose_and_report(options: DiagnoseOptions) -> int:
    """Diagnose a bundle or case and print the findings; returns the exit code."""
    diagnosis = diagnose(options)
    findings = chosen_findings(diagnosis.findings, options)
    diagnosis = replace(diagnosis, findings=findings, fail_on=options.fail_on)
    if options.svg is not None and not has_errors(diagnosis.findings):
        diagnosis = replace(diagnosis, pictures=_draw(options, Path(options.svg)))
    form = "json" if options.json else options.format
    if form == "text":
        from spyre.cli.text_report import print_diagnosis

        print_diagnosis(diagnosis, options)
    elif form in ("junit", "github"):
        lines = map(github_line, diagnosis.findings)
        print(junit_text(diagnosis) if form == "junit" else "\n".join(lines))
    else:
        from spyre.cli.json_report import diagnosis_object, print_object, print_text_of

        if form == "json":
            print_object(diagnosis_object(diagnosis))
        else:
            is_sarif = form == "sarif"
            print_text_of(
                sarif_object(diagnosis.findings) if is_sarif else gitlab_object(diagnosis)
            )
    return diagnosis.exit_code


def chosen_findings(findings: Sequence[Finding], options: DiagnoseOptions) -> tuple[Finding, ...]:
    """All errors, and the warnings that the options choose. LaunchError SPY383 for a baseline that
    cannot be read.
    """
    from spyre.cli.json_report import finding_object, read_findings

    known = [] if options.baseline is None else read_findings(options.baseline)
    return tuple(
        finding
        for finding in findings
        if finding.severity is Severity.ERROR
        or (
            finding.code.startswith(options.select or ("SPY",))
            and not finding.code.startswith(options.ignore or ("-",))
            and finding_object(finding) not in known
        )
    )


def diagnose(options: DiagnoseOptions) -> Diagnosis:
    """All findings of a bundle, or of every kernel of a case."""
    from spyre.cli.tiles import is_tile_program

    if is_tile_program(options.path):
        return diagnose_tiles(options.path)
    directory = _case_only(options.path)
    if directory is None:
        return diagnose_bundle(options.path, options)
    try:
        case = read_case(directory)
    except SpyreError as error:
        return Diagnosis(options.path, (error.finding,))
    names = dict.fromkeys(launch.bundle for launch in case.spec.launches)
    diagnoses = [diagnose_bundle(str(directory / name), options, False) for name in names]
    explanations = tuple(
        (f"{name}/{sdsc}", text)
        for name, diagnosis in zip(names, diagnoses, strict=True)
        for sdsc, text in diagnosis.explanations
    )
    findings = tuple(f for d in diagnoses for f in d.findings)
    if options.check and not has_errors(findings):
        findings = (*_address_findings(options, case), *findings)
    return Diagnosis(options.path, findings, explanations)


def diagnose_tiles(path: str) -> Diagnosis:
    """All findings of a KTIR text, including errors of reading it."""
    from spyre.mlir.tiles import load_ktir

    try:
        return Diagnosis(path, load_ktir(path).check())
    except SpyreError as error:
        return Diagnosis(path, (error.finding,))


def _case_only(path: str) -> Path | None:
    """The directory of a case that is not a bundle too."""
    directory = case_directory(path)
    is_bundle = directory is None or (directory / "bundle.mlir").is_file()
    return None if is_bundle else directory


def diagnose_bundle(path: str, options: DiagnoseOptions, addresses: bool = True) -> Diagnosis:
    """All findings of a bundle, including errors of reading it.

    ``addresses``: check its addresses too, which for a case needs all of its kernels.
    """
    from spyre.mlir.bundle import load_bundle

    try:
        bundle = load_bundle(path)
    except ValidationError as error:
        return Diagnosis(path, error.findings)
    except SpyreError as error:
        return Diagnosis(path, (error.finding,))
    findings = bundle.check()
    if has_errors(findings):  # a wrong bundle cannot be explained
        return Diagnosis(path, findings)
    if options.check:
        by_address = _address_findings(options, bundle) if addresses else ()
        findings = (*by_address, *findings, *_argument_findings(bundle, options))
    else:
        findings = ()
    if not options.explain:
        return Diagnosis(path, findings)
    texts = [(name, _explanation(bundle.operation(name))) for name in bundle.sdscs]
    return Diagnosis(path, findings, (*texts, ("bundle.mlir", _times(bundle, options))))


def _explanation(op: Operation) -> str:
    """The text on an operation; of a product with its modelled time and a better division."""
    from spyre.hw.cost import default_machine, division_text, product_counts
    from spyre.hw.counters import product_of
    from spyre.hw.ops import Category, find_op
    from spyre.mlir.explain import explain_operation

    known = find_op(op.name)
    if known is None or known.category is not Category.MATMUL:
        return explain_operation(op)
    counts = product_counts(product_of(op), op.inputs[0].data_format)
    return f"{explain_operation(op)}  {division_text(counts, default_machine())}\n"


def _times(bundle: Bundle, options: DiagnoseOptions) -> str:
    """Modelled time of a launch, and that with better tiles; why there is none if it is unknown."""
    from spyre.hw.cost import default_machine, tiling_text
    from spyre.hw.counters import LaunchCounts
    from spyre.hw.device import Device
    from spyre.runtime.run import RunOptions, Session

    session, chosen = Session(Device()), RunOptions(values=dict(options.values), check=False)
    try:
        with session.placed(session.describe(bundle, chosen)) as placed:
            counts = LaunchCounts([placed.link(0).view])
            results = [placed.tensors[each.buffer].address_bytes for each in placed.run.outputs]
    except SpyreError as error:
        return f"no modelled time: {error.finding.message}\n"
    lx_bytes = counts.lx_high_water_bytes
    return f"{tiling_text(counts.operations, default_machine(), lx_bytes, results)}\n"


def _argument_findings(bundle: Bundle, options: DiagnoseOptions) -> tuple[Finding, ...]:
    """Errors that a run would raise before it starts, on operations and arguments."""
    from spyre.hw.plans import check_operation
    from spyre.runtime.arguments import arrangement_findings, read_arguments

    findings: list[Finding] = []
    for name in bundle.sdscs:
        try:
            findings += check_operation(bundle.operation(name))
        except SpyreError as error:
            findings.append(error.finding.as_warning)
    try:
        arguments = read_arguments(bundle, dict(options.values))
        findings += arguments.findings
        findings += arrangement_findings(bundle, arguments, dict(options.values))
    except SpyreError as error:
        findings.append(error.finding)
    return tuple(dict.fromkeys(findings))


def _address_findings(
    options: DiagnoseOptions, source: LoweredBundle | Case
) -> tuple[Finding, ...]:
    """Findings on the addresses of a bundle or case; none if its arguments cannot be read, which
    other findings report.
    """
    from spyre.diagnose import address_findings
    from spyre.mlir.bundle import load_bundle
    from spyre.runtime.run import RunOptions, describe_run

    try:
        chosen = RunOptions(
            values=dict(options.values),
            shapes=[parse_tensor_spec(text) for text in options.shapes],
            strides=dict(options.strides),
            aliases=dict(options.aliases),
            check=False,
        )
        return address_findings(describe_run(source, load_bundle, chosen))
    except SpyreError:
        return ()


def _draw(options: DiagnoseOptions, directory: Path) -> tuple[str, ...]:
    """Files of the program's pictures. Errors as of `write_pictures` and of reading the program."""
    from spyre.runtime.pictures import write_pictures
    from spyre.runtime.program import load_source
    from spyre.runtime.run import RunOptions, describe_run

    case = _case_only(options.path)
    source = load_source(options.path) if case is None else read_case(case)
    chosen = RunOptions(values=dict(options.values), check=False)
    run = describe_run(source, load_source, chosen)
    return tuple(str(path) for path in write_pictures(run, directory, options.path))


# --- forms that other tools read --------------------------------------------------------------

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_object(findings: Sequence[Finding]) -> dict[str, Any]:
    """One run of this tool: a result per finding, and a rule per code that occurs."""
    from spyre.codes import diagnostic_codes

    codes = sorted({finding.code for finding in findings})
    rules = [diagnostic_codes()[code] for code in codes]
    driver = {
        "name": "spyre",
        "version": spyre.__version__,
        "rules": [
            {
                "id": rule.code,
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": rule.cause},
                "help": {"text": rule.fix},
                **_help_address(rule.code),
            }
            for rule in rules
        ],
    }
    results = [
        {
            "ruleId": finding.code,
            "ruleIndex": codes.index(finding.code),
            "level": finding.severity.value,
            "message": {"text": _text(finding)},
            "locations": [] if finding.location is None else [_place(finding.location)],
        }
        for finding in findings
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _help_address(code: str) -> dict[str, str]:
    """The address of a code's page, if one of the site of the documentation is set."""
    site = config.DOCS_URL.read().rstrip("/")
    return {"helpUri": f"{site}/errors/{code}.html"} if site else {}


def _text(finding: Finding) -> str:
    details = [("expected", finding.expected), ("found", finding.found), ("hint", finding.hint)]
    return "\n".join([finding.message, *(f"{label}: {text}" for label, text in details if text)])


def _place(location: Location) -> dict[str, Any]:
    """A SARIF location: the file, and the object that the file describes."""
    match location:
        case SourceLocation(file, line, column):
            return _in_file(file, {"region": {"startLine": line, "startColumn": column}})
        case JsonLocation(file, path):
            return _in_file(file) | {"logicalLocations": [{"fullyQualifiedName": path}]}
        case DeviceLocation(sdsc, source=source):
            where = _in_file(sdsc) if source is None else _place(source)
            return where | {"logicalLocations": [{"fullyQualifiedName": str(location)}]}


def _in_file(file: str, region: dict[str, Any] | None = None) -> dict[str, Any]:
    path = PurePath(file)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    return {"physicalLocation": {"artifactLocation": {"uri": uri}} | (region or {})}


def github_line(finding: Finding) -> str:
    """An annotation of GitHub Actions: ``::warning file=F,line=N,col=N,title=CODE::message``."""
    file, line, column = _file_place(finding.location)
    where = f"file={_property(file)}," if file else ""
    where += f"line={line},col={column}," if line else ""
    text = _text(finding) if where else str(finding)
    data = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{finding.severity.value} {where}title={finding.code}::{data}"


def _file_place(location: Location | None) -> tuple[str, int, int]:
    """File, line and column of a location; "" for no file, 0 for no line."""
    match location:
        case DeviceLocation(source=SourceLocation(file, line, column)):
            return file, line, column
        case SourceLocation(file, line, column):
            return file, line, column
        case JsonLocation(file=file) | DeviceLocation(sdsc=file):
            return file, 0, 0
    return "", 0, 0


def gitlab_object(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """A report of GitLab's code quality. A finding without a file is at the program's first line;
    equal findings of two runs have equal fingerprints.
    """
    issues = []
    for finding in diagnosis.findings:
        file, line, _ = _file_place(finding.location)
        path = PurePath(file or diagnosis.path).as_posix()
        issues.append(
            {
                "description": _text(finding),
                "check_name": finding.code,
                "fingerprint": sha256(str(finding).encode()).hexdigest(),
                "severity": "critical" if finding.severity is Severity.ERROR else "minor",
                "location": {"path": path, "lines": {"begin": line or 1}},
            }
        )
    return issues


def _property(text: str) -> str:
    for character in "%\r\n:,":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def junit_text(diagnosis: Diagnosis) -> str:
    """JUnit XML: a test case per finding, failed if its severity is; without findings, one test
    case that passed.
    """
    from xml.etree import ElementTree

    name, findings = diagnosis.path, diagnosis.findings
    failing = (Severity.ERROR, diagnosis.fail_on)
    failures = sum(finding.severity in failing for finding in findings)
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites, "testsuite", name=name, tests=str(len(findings) or 1), failures=str(failures)
    )
    for finding in findings:
        title = f"{finding.code} {finding.location or ''}".strip()
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=title)
        if finding.severity in failing:
            text = ElementTree.SubElement(case, "failure", message=finding.message)
        else:
            text = ElementTree.SubElement(case, "system-out")
        text.text = str(finding)
    if not findings:
        ElementTree.SubElement(suite, "testcase", classname=name, name="no findings")
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=False)
