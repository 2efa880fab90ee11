"""Makes a checkout of torch-spyre importable in this environment, and undoes it.

Its setup.py compiles against libraries that are not public; its Python needs no build. A link to
the checkout's package goes into site-packages, with a record of it in the form that pip knows, so
that ``pip list`` shows it and ``pip uninstall torch-spyre`` takes it away too. The record has no
entry point: SPYRE_FRONTEND decides whether torch-spyre is loaded, wherever else it is installed.

A .pth file beside the link puts the finder for ``torch_spyre._C`` in place when Python starts, for
processes in which torch loads no backends.
"""

from __future__ import annotations

import ast
import importlib.metadata
import shutil
import sys
import sysconfig
from pathlib import Path

from spyre import config
from spyre.errors import LaunchError
from spyre.frontend.activation import PACKAGE, TORCH_SPYRE
from spyre.frontend.upstream import FIRST, LAST, SUPPORTED, TORCH, commit, missing, torch_pin

MARK = "spyre.frontend"
"""Who installed it, in the record."""
REQUIRED = ("regex", "psutil", "numpy")
FOR_TESTS = ("pytest==9.1.1", "pydantic", "expecttest", "pyyaml", "ortools")
STARTUP = "spyre_frontend.pth"
STARTUP_LINE = (
    f"import os; os.environ.get({config.FRONTEND.name!r}) == {TORCH_SPYRE!r} and "
    "__import__('spyre.frontend.activation', fromlist=['activation']).install_finder()\n"
)
"""Python runs this line when it starts; where torch-spyre is not asked for, it reads one variable.
By its name the file comes after those of editable installs, which this package may be found by."""


Report = tuple[tuple[str, ...], tuple[str, ...]]
"""Actions taken, and differences from torch-spyre; sentences for users."""


def site_packages() -> Path:
    """Where this environment has its packages."""
    return Path(sysconfig.get_paths()["purelib"])


def install(checkout: Path, target: Path | None = None) -> Report:
    """Make ``torch_spyre`` of a checkout importable; replaces an earlier link of this command.

    ``target``: site-packages, by default this environment's. LaunchError SPY993 for a path that is
    no checkout, SPY997 for one made for another torch, SPY994 where the package is installed by
    other means.
    """
    folder = site_packages() if target is None else target
    source = _source(checkout)
    _check_pin(source.parent)
    removed = _remove(folder)
    link = folder / PACKAGE
    _check_free(link, folder)
    link.symlink_to(source, target_is_directory=True)
    startup = folder / STARTUP
    startup.write_text(STARTUP_LINE)
    version = _version(source)
    record = _write_record(folder, version)
    done = (
        *removed,
        f"{link} links to {source}",
        f"{startup} has Python find its extension where {config.FRONTEND.name}={TORCH_SPYRE}",
        f"{record} records it as torch-spyre {version}{_of_commit(source)}",
        "nothing of torch-spyre was copied or changed",
    )
    return done, tuple(_warnings(source))


def uninstall(target: Path | None = None) -> Report:
    """Undo `install`. LaunchError SPY994 if the package was installed by other means only."""
    folder = site_packages() if target is None else target
    removed = _remove(folder)
    if not removed:
        _check_free(folder / PACKAGE, folder)
        return ("torch-spyre is not installed",), ()
    return removed, ()


def check(target: Path | None = None) -> Report:
    """Report the installed parts and the missing ones."""
    folder = site_packages() if target is None else target
    link = folder / PACKAGE
    if not _is_there(link):
        return ("torch-spyre is not installed",), ()
    source = link.resolve()
    warnings = (*_startup_warnings(folder / STARTUP), *_warnings(source))
    return (f"{PACKAGE} is {source}, version {_version(source)}{_of_commit(source)}",), warnings


def _of_commit(source: Path) -> str:
    found = commit(source.parent)
    return "" if found is None else f", commit {found[1]} of {found[0]}"


def _check_pin(checkout: Path) -> None:
    """SPY997."""
    if (pin := torch_pin(checkout)) and TORCH not in pin:
        raise LaunchError(
            "SPY997",
            "this torch-spyre is made for another torch",
            expected=SUPPORTED,
            found=f"torch{pin}{_of_commit(checkout / PACKAGE)}",
        )


def _startup_warnings(startup: Path) -> list[str]:
    if startup.is_file() and startup.read_text() == STARTUP_LINE:
        return []
    return [
        f"{startup} is not there, or not this version's: without torch's loading of backends "
        f"{PACKAGE}._C cannot be imported: python -m spyre.frontend install PATH"
    ]


def _source(checkout: Path) -> Path:
    source = (checkout / PACKAGE).resolve()
    if not (source / "__init__.py").is_file():
        raise LaunchError(
            "SPY993",
            f"{checkout} is no checkout of torch-spyre",
            expected=f"a folder with {PACKAGE}/__init__.py",
            found=", ".join(sorted(p.name for p in checkout.glob("*"))[:8]) or "nothing",
            hint="git clone https://github.com/torch-spyre/torch-spyre",
        )
    return source


def _check_free(link: Path, folder: Path) -> None:
    others = [p for p in (link, *folder.glob(f"{PACKAGE}-*.dist-info")) if _is_there(p)]
    if others:
        raise LaunchError(
            "SPY994",
            "torch-spyre is installed in this environment, and not by this command",
            expected=f"no {link}",
            found=", ".join(map(str, others)),
            hint="pip uninstall torch-spyre",
        )


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _remove(folder: Path) -> tuple[str, ...]:
    """Delete the files that this command has written."""
    done = []
    for record in folder.glob(f"{PACKAGE}-*.dist-info"):
        installer = record / "INSTALLER"
        if not installer.is_file() or installer.read_text().strip() != MARK:
            continue
        link = folder / PACKAGE
        if link.is_symlink():
            link.unlink()
            done.append(f"removed the link {link}")
        startup = folder / STARTUP
        if startup.is_file():
            startup.unlink()
            done.append(f"removed {startup}")
        shutil.rmtree(record)
        done.append(f"removed {record}")
    return tuple(done)


def _version(source: Path) -> str:
    """``__version__`` of version.py, which need not be imported for it."""
    path = source / "version.py"
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if "__version__" in names:
                return str(node.value.value)
    return "0"


def _write_record(folder: Path, version: str) -> Path:
    record = folder / f"{PACKAGE}-{version}.dist-info"
    record.mkdir()
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: torch-spyre\nVersion: {version}\n"
        "Summary: linked from a checkout by python -m spyre.frontend install\n",
        "INSTALLER": f"{MARK}\n",
    }
    for name, text in files.items():
        (record / name).write_text(text)
    listed = [PACKAGE, STARTUP, *(f"{record.name}/{name}" for name in (*files, "RECORD"))]
    (record / "RECORD").write_text("".join(f"{name},,\n" for name in listed))
    return record


# --- what torch-spyre needs -----------------------------------------------------------------------


def _warnings(source: Path) -> list[str]:
    """Versions and packages that are not as torch-spyre has them."""
    found = []
    torch = _installed("torch")
    if torch is None or not torch.startswith(f"{TORCH}."):
        found.append(f"torch-spyre is made for torch {TORCH}, and {torch or 'no torch'} is there")
    else:
        found += missing(source)
        found += [f"its tests: {each}" for each in missing(source.parent / "tests")]
    pin, at = torch_pin(source.parent), commit(source.parent)
    if pin and TORCH not in pin:
        found.append(f"this torch-spyre is made for torch{pin}; supported are {SUPPORTED}")
    elif at is not None and not FIRST[0] <= at[0] <= LAST[0]:
        found.append(f"commit {at[1]} of {at[0]} was not run with this package, only {SUPPORTED}")
    if sys.version_info < (3, 12):
        found.append(
            "torch-spyre uses Python 3.12; on 3.11 its warnings are translated, and its tests need "
            "the plugin of `python -m qa.frontend`"
        )
    for names, use in ((REQUIRED, "torch-spyre needs"), (FOR_TESTS, "its tests need")):
        absent = [name for name in names if _lacks(name)]
        if absent:
            found.append(f"{use} {', '.join(absent)}: pip install {' '.join(absent)}")
    if compiled := sorted(source.glob("_C*.so")):
        found.append(f"{compiled[0].name} is there and not used where SPYRE_FRONTEND=torch-spyre")
    return found


def _lacks(requirement: str) -> bool:
    name, _, version = requirement.partition("==")
    found = _installed(name)
    return found is None or (version != "" and found != version)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
