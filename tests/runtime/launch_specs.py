"""launch_spec.json files for tests."""

from __future__ import annotations

from pathlib import Path

from spyre.runtime.program.launch_spec import LaunchSpec, format_launch_spec


def write_launch_spec(path: Path, spec: LaunchSpec) -> None:
    """Write ``spec`` as a file."""
    path.write_text(format_launch_spec(spec))
