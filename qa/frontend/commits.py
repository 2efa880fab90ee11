"""``python -m qa.frontend.commits --torch-spyre PATH``: quick checks of torch-spyre's commits.

``PATH``: a clone with its history. Each commit is unpacked, installed into a folder and compared
with the extension; then copies, an eager and a compiled function run, unless it is refused because
it pins another torch. Exit codes: 0 all as expected, 1 one differs, 2 the clone lacks a commit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spyre.errors import LaunchError
from spyre.frontend.install import install

ROOT = Path(__file__).parents[2]
COMMITS = {
    "248c2e4": ("2026-06-24", False),
    "885e19c": ("2026-07-15", False),
    "754839c": ("2026-07-29", True),
    "cdc895f": ("2026-08-04", True),
    "9e0a3d8": ("2026-08-19", True),
}
"""Date and whether it runs, by hash; the others pin an older torch."""
CODE = """
import torch
from spyre.frontend import autoload

autoload()
x, w = torch.randn(64, 128).half(), torch.randn(128, 64).half()
card = x.to("spyre")
torch.testing.assert_close(card.cpu(), x, rtol=2**-8, atol=0)
torch.testing.assert_close((card + card).cpu(), x + x, rtol=0.01, atol=0.01)

def attend(x, w):
    return torch.softmax(x @ w, -1)

found = torch.compile(attend)(card, w.to("spyre")).cpu()
torch.testing.assert_close(found.float(), attend(x.float(), w.float()), rtol=0.1, atol=0.1)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.frontend.commits", description=__doc__)
    add = parser.add_argument
    add("--torch-spyre", metavar="PATH", default=os.environ.get("SPYRE_TORCH_SPYRE", ""))
    add("--only", nargs="*", choices=COMMITS, default=[*COMMITS], metavar="COMMIT")
    options = parser.parse_args(arguments)
    outcomes = []
    for commit in options.only:
        date, runs = COMMITS[commit]
        with tempfile.TemporaryDirectory() as folder:
            unpacked = Path(folder) / "checkout"
            if not _unpack(Path(options.torch_spyre), commit, unpacked):
                print(f"{options.torch_spyre} has no commit {commit}", file=sys.stderr)
                return 2
            found = _tried(unpacked, Path(folder))
        as_expected = (not found) if runs else found.startswith("error[SPY997]")
        outcomes.append(as_expected)
        print(f"{date} {commit}: {found or 'runs'}{'' if as_expected else ' (unexpected)'}")
    return int(not all(outcomes))


def _unpack(clone: Path, commit: str, folder: Path) -> bool:
    folder.mkdir()
    git = ["git", "-C", str(clone), "archive", commit, "torch_spyre", "tests", "pyproject.toml"]
    archive = subprocess.run(git, stdout=subprocess.PIPE, check=False)
    unpacked = subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=False)
    return archive.returncode == 0 and unpacked.returncode == 0


def _tried(checkout: Path, folder: Path) -> str:
    """Return the reason why a checkout does not run, or ""."""
    site = folder / "site"
    site.mkdir()
    try:
        warnings = install(checkout, site)[1]
    except LaunchError as error:
        return " ".join(str(error).split())
    lacking = [warning for warning in warnings if warning.startswith("torch_spyre._C")]
    if lacking:
        return "; ".join(lacking)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SPYRE_FRONTEND": "torch-spyre",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False
    )
    return done.stderr[-1500:] if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
