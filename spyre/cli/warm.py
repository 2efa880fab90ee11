"""``--warm``: kernels and plans are compiled into the cache, nothing is run."""

from __future__ import annotations

from spyre.cli.commands import make_device, run_options
from spyre.cli.options import Options
from spyre.hw.device.device import warm_driver, warm_kernels, warm_transfers
from spyre.runtime.cases.case import case_directory, read_case
from spyre.runtime.run.session import Session, placed


def warm(options: Options) -> int:
    """Compile what ``options.path`` needs, or every kernel; the exit code.

    SpyreErrors as of running the bundle, as far as they show before it runs.
    """
    device = make_device(options)
    warm_transfers(device)
    warm_driver(device)
    if not options.path:
        for name in warm_kernels():
            _say(options, f"compiling or loading {name}")
        return 0
    session = Session(device)
    for path in _bundles(options.path):
        count = _warm_bundle(session, path, options)
        _say(options, f"{path}: {count} kernels are ready")
    return 0


def _bundles(path: str) -> list[str]:
    """The bundle, or all bundles of a case."""
    directory = case_directory(path)
    if directory is None:
        return [path]
    launches = read_case(directory).spec.launches
    return [str(directory / name) for name in dict.fromkeys(each.bundle for each in launches)]


def _warm_bundle(session: Session, path: str, options: Options) -> int:
    """Link the bundle for arguments that nobody fills; how many kernels it uses."""
    run = run_options(options)
    prepared = session.prepare(path)
    arguments = prepared.arguments(run)
    with placed(session.device, arguments, prepared.bundle.program) as placement:
        linked = prepared.kernel.kernel.link(prepared.launch_of(placement, run))
        session.device.executor.warm(linked)
        return int((linked.entries != 0).sum())


def _say(options: Options, text: str) -> None:
    if not options.quiet:
        print(text, flush=True)
