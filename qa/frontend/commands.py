"""``python -m qa.frontend.commands --torch-spyre PATH``: the commands of docs/frontend.md.

In an empty folder with a copy of this package and a new environment. Exit code: that of the first
command that fails. Needs a package index; not a test, as it installs torch.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "frontend.md"
SECTION = "## From nothing"
CLONE = re.compile(r"git clone \S+ (\S+)")
INDEX = re.compile(r"pip install (torch==\S+) --index-url \S+")


def commands(page: str, checkout: str, wheels: str | None = None) -> str:
    """The lines of the page's first block of commands, for `checkout` instead of a clone.

    ``wheels``: a folder to take torch from, instead of its index.
    """
    block = page.partition(SECTION)[2].split("```")[1].strip()
    lines, clones = CLONE.subn(rf"ln -s {checkout} \1", block)
    if clones != 1:
        raise ValueError(f"{PAGE} clones torch-spyre {clones} times, expected once")
    return INDEX.sub(rf"pip install '\1+cpu' --find-links {wheels}", lines) if wheels else lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.frontend.commands")
    parser.add_argument("--torch-spyre", metavar="PATH", type=Path, required=True)
    parser.add_argument("--wheels", metavar="DIR", help="where a wheel of torch for the CPU is")
    options = parser.parse_args(arguments)
    lines = commands(PAGE.read_text(), str(options.torch_spyre.resolve()), options.wheels)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "spyre"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(package)], check=True)
        script = ["bash", "-euxc", lines]
        return subprocess.run(script, cwd=package, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
