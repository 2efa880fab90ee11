"""``--compare A B``: modelled time of two runs side by side."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from spyre.cli.commands import run_compared
from spyre.cli.options import CompareOptions, ExecuteOptions
from spyre.cli.recorder import Recorder, check_machine


def run_compare_profiles(options: CompareOptions) -> int:
    """Profile both, or read saved profiles; print the differences. Errors as of `spyre.run`."""
    from spyre.runtime.profile import compare_profiles, comparison_object, comparison_table

    check_machine(options)
    first, second = options.compare
    lines = compare_profiles(_profile_of(options, first), _profile_of(options, second))
    if options.json:
        from spyre.cli.json_report import print_object

        print_object({"a": first, "b": second, "comparison": comparison_object(lines)})
    else:
        from spyre.cli.text_report import print_table

        print_table(comparison_table(lines, first, second))
    return 0


def _profile_of(options: CompareOptions, path: str) -> dict[str, Any]:
    """The saved profile, or that of a run of a bundle or case."""
    if path.endswith(".json") and Path(path).name != "case.json":
        from spyre.runtime.profile import read_kept_run

        return read_kept_run(Path(path))
    names = {f.name for f in fields(options)} & {f.name for f in fields(ExecuteOptions)}
    shared = {name: getattr(options, name) for name in names - {"path"}}
    chosen = ExecuteOptions(path=path, profile=True, **shared)
    recorder = Recorder(chosen)
    run_compared(chosen, recorder)
    return recorder.profile.to_json()
