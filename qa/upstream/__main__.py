"""Run torch's device tests on "spyre", from a checkout of torch.

A test passes, is skipped, needs a dtype or layout without device format, is refused by code, or
fails. A failed test runs again on the CPU; if it fails there too, torch is at fault. Exit codes: 0
if no other test fails, 1 if one does, 2 if nothing could run.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from qa.neighbour.__main__ import VARIABLE
from qa.neighbour.runs import Choice, Outcome, Outcomes, run_file
from qa.opinfo import outcome as o
from qa.opinfo.__main__ import piece_of
from qa.opinfo.refusals import REFUSAL

TEMPLATE = "inductor"
"""Name of the common template among the names of files."""
FILES = (TEMPLATE, "test_tensor_creation_ops.py", "test_view_ops.py", "test_indexing.py")
"""Files whose tests torch generates for every device."""
DEVICE = "UPSTREAM_DEVICE"
PLUGIN = "qa.upstream.default_device"
FAILED, TORCH = "failed", "failed on the CPU too"


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.pytorch is None or not Path(options.pytorch, "test").is_dir():
        print(f"no test folder of torch: --pytorch, or {VARIABLE}", file=sys.stderr)
        return 2
    os.environ[VARIABLE] = options.pytorch
    failed = sum(_run(name, options) for name in options.files or FILES)
    print(f"{failed} failures that are not torch's")
    return 1 if failed else 0


def _run(name: str, options: argparse.Namespace) -> int:
    """Run one file, print its outcomes, and return the number of failures that are not torch's."""
    file = Path(options.pytorch, "test", name)
    if name == TEMPLATE:
        file = Path(__file__).with_name("template.py")
    choice = Choice(options.sample, options.expression, None, options.timeout, options.limit)
    found = on_device(file, choice, options.default_device)
    counts = Counter(one.result for one in found.values())
    for test, one in found.items():
        if one.result not in ("passed", "skipped"):
            print(f"{test}: {one.result}: {one.why}")
    print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in counts.most_common()))
    return sum(counts[what] for what in (FAILED, "crashed", "timed out"))


def on_device(file: Path, choice: Choice, is_default: bool = False) -> Outcomes:
    """Return a file's outcomes by test; ``is_default``: tests without a device use this one."""
    outcomes = _outcomes(file, choice, "spyre", is_default)
    found = {test: classified(outcome) for test, outcome in outcomes.items()}
    failed = [test for test, one in found.items() if one.result == FAILED]
    again = _outcomes(
        file,
        replace(choice, only=tuple(map(_on_cpu, failed)), expression="", piece=(1, 1)),
        "cpu",
        is_default,
    )
    for test in failed:
        here = again.get(_on_cpu(test))
        if here is not None and here.result == FAILED:
            found[test] = Outcome(TORCH, here.why)
    return found


def _on_cpu(test: str) -> str:
    """Return the name of a test's variant for the CPU."""
    name = re.sub(r"_(spyre|privateuse1)(?=_|$)", "_cpu", test)
    return re.sub(r"(PRIVATEUSE1|SPYRE)(?=::)", "CPU", name)


def _outcomes(file: Path, choice: Choice, device: str, is_default: bool) -> Outcomes:
    """Run the tests for ``device``; an empty choice runs none."""
    if choice.only == ():
        return {}
    kind = "privateuse1" if device == "spyre" else device
    chosen = {DEVICE: device, "PYTORCH_TESTING_DEVICE_ONLY_FOR": kind}
    if is_default:
        chosen |= {"PYTEST_PLUGINS": PLUGIN, "SPYRE_FALLBACK": "silent"}
    return run_file(file, choice, package=True, environment=chosen)


def classified(outcome: Outcome) -> Outcome:
    """Classify a failure by its error: an unsupported dtype or layout, a refusal, or a failure."""
    if outcome.result != FAILED:
        return outcome
    if REFUSAL.search(outcome.why):
        return replace(outcome, result=o.UNSUPPORTED)
    code = re.search(r"SPY\d{3}", outcome.why)
    if code is not None and "DeviceFault" not in outcome.why:
        return replace(outcome, result=o.LAYOUT if code.group() == "SPY906" else o.REFUSED)
    return outcome


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qa.upstream", description=__doc__)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help=f"of {', '.join(FILES)}, or others")
    add("--pytorch", default=os.environ.get(VARIABLE), metavar="PATH", help=f"or ${VARIABLE}")
    add("--sample", type=piece_of, default=(1, 1), metavar="K/N", help="piece K of N of each file")
    add("-k", dest="expression", default="", metavar="EXPRESSION", help="as pytest's")
    add("--default-device", action="store_true", help="also for tensors that name no device")
    add("--timeout", type=float, default=3600.0, metavar="SECONDS", help="per file and run")
    add("--limit", type=float, default=Choice.limit, metavar="SECONDS", help="per test")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
