"""Recording of a run: command stream, traces and profiles, as files and as text.

Targets are checked before the run, and written after it.
For ``--trace``, ``--commands``, ``--profile``, ``--report``, ``--roofline`` and
``--modelled-trace``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spyre.cli.options import CompareOptions, ExecuteOptions
from spyre.errors import JsonLocation, LaunchError, SpyreError

if TYPE_CHECKING:
    from spyre.diagnose import FirstDivergence
    from spyre.hw.cost import Model
    from spyre.hw.device import Device
    from spyre.runtime.flex import CommandStream
    from spyre.runtime.profile import Profile


class Recorder:
    """Records the command stream of one run if the options ask for it."""

    def __init__(self, options: ExecuteOptions) -> None:
        """LaunchError SPY886, ProfileError SPY782 or MachineError, before anything runs."""
        self._options = options
        self._commands: CommandStream | None = None
        self._device_index = 0
        self._is_timed = options.trace is not None or options.models
        for file in (options.trace, options.modelled_trace):
            if file is not None:
                from spyre.runtime.trace import check_trace_file

                check_trace_file(file)
        if options.report is not None:
            from spyre.runtime.profile import check_target

            check_target(options.report)
        if options.roofline is not None:
            from spyre.runtime.profile import check_roofline_file

            check_roofline_file(options.roofline)
        if options.models:
            check_machine(options)

    def require_times(self, options: ExecuteOptions, file: Path) -> None:
        """LaunchError SPY887 for a trace or profile of a case whose recorded options verify it."""
        if self._is_timed and options.verify:
            raise LaunchError(
                "SPY887",
                "the case is recorded with --verify, which takes no times to trace",
                JsonLocation(str(file), "$.run.verify"),
            )

    @contextmanager
    def recording(self, device: Device) -> Iterator[None]:
        """Record the control blocks that ``device`` runs in this context, if they are needed."""
        if not self._is_timed and not self._options.commands:
            yield
            return
        from spyre.runtime.flex import flex_device_of

        flex = flex_device_of(device)
        self._device_index = flex.index
        with flex.recording() as self._commands:
            yield

    def write_trace(self) -> None:
        """Write the trace; nothing where nothing was recorded. LaunchError SPY886."""
        if self._options.trace is None or not self._commands:
            return
        from spyre.runtime.profile import modelled_events
        from spyre.runtime.trace import write_trace

        more = modelled_events(self.profile, self._device_index)
        write_trace(self._options.trace, {self._device_index: self._commands}, more=more)

    @cached_property
    def profile(self) -> Profile:
        """Modelled time of the recorded launches."""
        from spyre.runtime.flex import CommandStream
        from spyre.runtime.profile import profile_of_recording

        commands = CommandStream() if self._commands is None else self._commands
        options, model = self._options, cast("Model", self._options.cost_model)
        return profile_of_recording(commands, options.machine, model, options.overlap)

    def write_profile(self, search: FirstDivergence | None = None) -> None:
        """Write the files of the profile that were asked for. ``search``: of a wrong run."""
        if self._options.report is not None:
            title = f"{Path(self._options.path).name} on {self.profile.machine.name}"
            from spyre.diagnose import mismatch_section

            sections = [] if search is None else [mismatch_section(search)]
            self.profile.report(self._options.report, title, sections)
        if self._options.roofline is not None:
            self.profile.roofline(self._options.roofline)
        if self._options.modelled_trace is not None:
            self.profile.modelled_trace(self._options.modelled_trace)

    def print_profile(self) -> None:
        """Print the table and the lines under it, if they were asked for."""
        if self._options.profile:
            from spyre.cli.text_report import print_table
            from spyre.runtime.profile import summary_lines

            print_table(self.profile.table(self._options.verbose))
            for line in summary_lines(self.profile):
                print(line)

    def print_commands(self) -> None:
        """Print the command stream on stdout, a line per control block."""
        if self._options.commands and self._commands is not None:
            print(self._commands, end="")

    def json_object(self) -> dict[str, Any]:
        """For ``--json``: lines of the command stream and the profile, null if not asked for."""
        shown = self._options.commands and self._commands is not None
        return {
            "commands": str(self._commands).splitlines() if shown else None,
            "profile": self.profile.to_json() if self._options.profile else None,
        }

    def report_after(self, error: SpyreError) -> None:
        """Print the commands and write the trace of a run that ended in ``error``, unless it was
        refused before its first launch.

        If the trace cannot be written, ``error.observed`` gets that finding too.
        """
        from spyre.runtime.flex import Engine

        if not any(command.engine is Engine.COMPUTE for command in self._commands or ()):
            return
        if not self._options.json:
            self.print_commands()
        try:
            self.write_trace()
        except LaunchError as second:
            error.observed = (*error.observed, second.finding)


def check_machine(options: ExecuteOptions | CompareOptions) -> None:
    """MachineError for a file of constants that cannot be used."""
    if options.machine is not None:
        from spyre.hw.cost import load_machine

        load_machine(options.machine)
