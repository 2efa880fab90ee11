"""``--trace`` and ``--commands``: what the card did in a run, as a file and as text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spyre.cli.options import Options
from spyre.errors import JsonLocation, LaunchError, SpyreError

if TYPE_CHECKING:
    from spyre.hw.device import Device
    from spyre.runtime.flex.command_stream import CommandStream


class Recorder:
    """Records the command stream of one run if the options ask for it."""

    def __init__(self, options: Options) -> None:
        """LaunchError SPY886 at once, before anything runs, where no trace can be written."""
        self._options = options
        self._commands: CommandStream | None = None
        self._device_index = 0
        if options.trace is not None:
            from spyre.runtime.flex.trace import check_trace_file

            check_trace_file(options.trace)

    def require_times(self, options: Options, file: Path) -> None:
        """LaunchError SPY887 when a trace is asked for and a case's own ``options`` verify it."""
        if self._options.trace is not None and options.verify:
            raise LaunchError(
                "SPY887",
                "the case is recorded with --verify, which takes no times to trace",
                JsonLocation(str(file), "$.run.verify"),
            )

    @contextmanager
    def watching(self, device: Device) -> Iterator[None]:
        """Record what ``device`` does in the block."""
        if self._options.trace is None and not self._options.commands:
            yield
            return
        from spyre.runtime.flex.flex_device import flex_device_of

        flex = flex_device_of(device)
        self._device_index = flex.index
        with flex.recording() as self._commands:
            yield

    def write_trace(self) -> None:
        """Write the trace; nothing where nothing was recorded. LaunchError SPY886."""
        if self._options.trace is None or not self._commands:
            return
        from spyre.runtime.flex.trace import write_trace

        write_trace(self._options.trace, {self._device_index: self._commands})

    def print_commands(self) -> None:
        """Print the command stream on stdout, a line per control block."""
        if self._options.commands and self._commands is not None:
            print(self._commands, end="")

    def json_object(self) -> dict[str, Any]:
        """The command stream for ``--json``: its lines, null if it was not asked for."""
        if not self._options.commands or self._commands is None:
            return {"commands": None}
        return {"commands": str(self._commands).splitlines()}

    def report_after(self, error: SpyreError) -> None:
        """What ran until ``error``; a trace that cannot be written is told of beside it."""
        if not self._options.json:
            self.print_commands()
        try:
            self.write_trace()
        except LaunchError as second:
            error.observed = (*error.observed, second.finding)
