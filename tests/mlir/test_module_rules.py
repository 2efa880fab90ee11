"""The rule table: every rule can be broken, codes are registered, checking is linear."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from spyre.codes import diagnostic_codes
from spyre.errors import Severity, SpyreError
from spyre.mlir.text.lowering import STRICT_RULES, VALUE_RULES, inspect_module
from spyre.mlir.text.parser import parse_module
from spyre.mlir.text.structure_rules import STRUCTURE_RULES
from spyre.mlir.text.syntax import AddIOp, ConstantOp, ExecuteOp, Function, Module

BAD = Path(__file__).parent / "bad_mlir"
LAUNCH_CODES = {"SPY170", "SPY171", "SPY172", "SPY173", "SPY174", "SPY175", "SPY176"}
ELSEWHERE = {"SPY158"}  # provoked in test_program.py: the text would be long
OF_TILES = {f"SPY{number}" for number in range(180, 198)}  # of KTIR: tests/mlir/tiles

DYNAMIC = """
func.func @f(%n: !sdscbundle.input_arg<index, granularity=64, max_value=512>) {
  %c0 = arith.constant 0 : index
  %size = sdscbundle.input_arg_extract value from %n : !sdscbundle.input_arg<index> -> index
  %step = sdscbundle.input_arg_extract granularity from %n : !sdscbundle.input_arg<index> -> index
  scf.for %i = %c0 to %size step %step {
    sdscbundle.sdsc_execute () {sdsc_filename="s.json"}
  }
  return
}
"""


def codes_of_bad_files() -> set[str]:
    found = set()
    for path in BAD.glob("*.mlir"):
        try:
            inspection = inspect_module(parse_module(path.read_text()), strict=True)
            found |= {f.code for f in inspection.findings}
        except SpyreError as error:
            found.add(error.code)
    return found


def test_every_code_has_a_bad_file() -> None:
    strict = {f.code for f in inspect_module(parse_module(DYNAMIC), strict=True).findings}
    codes = {code for code in diagnostic_codes() if code < "SPY200"}
    missing = codes - codes_of_bad_files() - strict - LAUNCH_CODES - ELSEWHERE - OF_TILES
    assert missing == set()


def test_rules_are_unique() -> None:
    codes = [*STRUCTURE_RULES.severities, *VALUE_RULES.severities, *STRICT_RULES.severities]
    assert len(set(codes)) == len(codes)


def test_constant_bounds_are_asked_for_in_strict_mode_only() -> None:
    module = parse_module(DYNAMIC)
    assert inspect_module(module).findings == ()
    (finding,) = inspect_module(module, strict=True).findings
    assert (finding.code, finding.severity) == ("SPY156", Severity.ERROR)
    assert finding.found == "0 to n step 64"


def test_findings_of_a_module_without_text_have_no_place() -> None:
    body = (AddIOp("x", "y", "y"), ExecuteOp(("x",), "s.json", (-1,)))
    (finding,) = inspect_module(Module(Function("f", (), body))).findings
    assert (finding.code, finding.location) == ("SPY130", None)


def test_findings_come_in_textual_order() -> None:
    text = (
        (BAD / "undefined.mlir").read_text().replace("return", "#m = affine_map<() -> (1)>\nreturn")
    )
    lines = [f.location.line for f in inspect_module(parse_module(text)).findings if f.location]
    assert lines == sorted(lines)
    assert len(lines) == 3


def test_one_id_may_change_inside_one_loop_but_not_between_executes() -> None:
    head = "%c0 = arith.constant 0 : index\n%c8 = arith.constant 8 : index\n"
    first = 'sdscbundle.sdsc_execute (%c0) {sdsc_filename="a.json", symbol_ids=[-1]}\n'
    second = 'sdscbundle.sdsc_execute (%c8) {sdsc_filename="b.json", symbol_ids=[-1]}\n'
    loop = f"scf.for %i = %c0 to %c8 step %c8 {{\n{first}{second}}}\n"

    def codes(body: str) -> list[str]:
        module = parse_module(f"func.func @f() {{\n{head}{body}return\n}}")
        return [finding.code for finding in inspect_module(module).findings]

    assert codes(loop) == []
    assert codes(first + second) == ["SPY166"]
    assert codes(loop + second) == ["SPY166"]


def test_a_rule_is_heard_a_hundred_times() -> None:
    body = tuple(AddIOp(f"x{k}", f"nowhere{k}", f"nowhere{k}") for k in range(1, 500))
    findings = inspect_module(Module(Function("f", (), body))).findings
    assert Counter(f.code for f in findings) == {"SPY130": 100}


def test_checking_is_linear() -> None:
    def calls(n: int) -> int:
        constants = tuple(ConstantOp(f"c{k}", k) for k in range(n))
        executes = tuple(ExecuteOp((f"c{k}",), f"sdsc_{k}.json", (-k - 1,)) for k in range(n))
        module = Module(Function("f", (), constants + executes))
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        findings = inspect_module(module).findings
        sys.setprofile(None)
        assert findings == ()
        return counted

    assert calls(4_000) < 4.1 * calls(1_000)
