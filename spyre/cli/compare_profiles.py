"""``--compare A B``: modelled time of two runs side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from spyre.cli.commands import run_and_compare
from spyre.cli.options import Options
from spyre.cli.recorder import Recorder, check_profile_files
from spyre.errors import SpyreError


def run_compare_profiles(options: Options) -> int:
    """Profile both, or read what was kept; print the differences. Errors as of `execute`."""
    from spyre.runtime.profile import compare_profiles, comparison_object, comparison_table

    assert options.compare is not None
    check_profile_files(options)
    first, second = options.compare
    lines = compare_profiles(_profile_of(options, first), _profile_of(options, second))
    if options.json:
        from spyre.cli.json_report import print_object

        print_object({"a": first, "b": second, "comparison": comparison_object(lines)})
    else:
        from spyre.cli.text_report import print_table

        print_table(comparison_table(lines, first, second))
    return 0


def _profile_of(options: Options, path: str) -> dict[str, Any]:
    """The profile of a kept run, or of a run of a bundle or case."""
    if path.endswith(".json") and Path(path).name != "case.json":
        from spyre.runtime.profile import read_kept_run

        return read_kept_run(Path(path))
    chosen = replace(options, path=path, compare=None, profile=True)
    recorder = Recorder(chosen)
    try:
        run_and_compare(chosen, recorder)
    except SpyreError as error:
        recorder.report_after(error)
        raise
    return recorder.profile.to_json()
