"""``--profile``, ``--report``, ``--roofline``: modelled time of a command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from spyre.cli.options import Options

if TYPE_CHECKING:
    from spyre.runtime.flex.command_stream import CommandStream
    from spyre.runtime.profile.profile import Profile


def check_files(options: Options) -> None:
    """ProfileError SPY780 or SPY782, MachineError: before anything runs."""
    if options.report is not None:
        from spyre.runtime.profile.files import check_target

        check_target(options.report)
    if options.roofline is not None:
        from spyre.runtime.profile.roofline import require_plot

        require_plot(options.roofline)
    if options.machine is not None:
        from spyre.hw.cost.machine import load_machine

        load_machine(options.machine)


def make_profile_of(options: Options, commands: CommandStream) -> Profile:
    """The profile of what was recorded, by the options' machine, model and policy."""
    from spyre.runtime.profile.profile import profile_of_recording

    model: Any = options.cost_model
    return profile_of_recording(commands, options.machine, model, options.overlap)


def write_files(options: Options, profile: Profile) -> None:
    """Write the report and the picture that were asked for."""
    if options.report is not None:
        profile.report(options.report, f"{Path(options.path).name} on {profile.machine.name}")
    if options.roofline is not None:
        profile.roofline(options.roofline)


def print_profile(options: Options, profile: Profile) -> None:
    """The table and the lines under it."""
    from spyre.cli.text_report import print_table
    from spyre.runtime.profile.table import make_table, summary_lines

    print_table(make_table(profile, options.verbose))
    for line in summary_lines(profile):
        print(line)
