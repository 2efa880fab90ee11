"""``python -m qa.frontend.commands``: the commands of docs/frontend.md, or of the page ``--page``.

In an empty folder with a copy of this package and a new environment. Exit code: that of the first
command that fails. Needs a package index; not a test, as it installs torch.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("frontend", "serving")
SECTION = "## From nothing"
ORIGIN = "https://github.com/torch-spyre/"
INDEX = re.compile(r"pip install (torch==\S+) --index-url \S+")


def commands(page: str, wheels: str | None = None) -> str:
    """The lines of a page's first block of commands.

    ``wheels``: a folder to take torch from, instead of its index.
    """
    text = (ROOT / "docs" / f"{page}.md").read_text()
    block = text.partition(SECTION)[2].split("```")[1].strip()
    return INDEX.sub(rf"pip install '\1+cpu' --find-links {wheels}", block) if wheels else block


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.frontend.commands")
    add = parser.add_argument
    add("--page", choices=PAGES, default=PAGES[0])
    add("--clones", metavar="DIR", type=Path, help="clones by name, in place of those at GitHub")
    add("--wheels", metavar="DIR", help="where a wheel of torch for the CPU is")
    options = parser.parse_args(arguments)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if options.clones is not None:
        environment |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{options.clones.resolve()}/.insteadOf",
            "GIT_CONFIG_VALUE_0": ORIGIN,
        }
    script = ["bash", "-euxc", commands(options.page, options.wheels)]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "spyre"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(package)], check=True)
        running = subprocess.Popen(script, cwd=package, env=environment, start_new_session=True)
        try:
            return running.wait()
        finally:
            with suppress(ProcessLookupError):  # a server in the background
                os.killpg(running.pid, signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
