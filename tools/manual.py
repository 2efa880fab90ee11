"""The man page of ``spyre``, made from the parsers of its commands.

`python -m tools.manual` writes share/man/man1/spyre.1, which an installation copies; ``--check``
exits 1 if the page is stale. Needs the extra ``docs``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage

import spyre
from spyre.cli.completion import whole_parser

PAGE = Path(__file__).parents[1] / "share" / "man" / "man1" / "spyre.1"


def manual() -> str:
    """Return the page as roff."""
    parser = whole_parser()
    page = Manpage(parser)
    page.date, page.source, page.manual = "", f"spyre {spyre.__version__}", "Commands"
    page.description = str(parser.description).partition(": ")[2].rstrip(".")
    return f"{page}\n"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.manual", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    only_check = parser.parse_args().check
    text = manual()
    is_stale = not PAGE.is_file() or PAGE.read_text() != text
    if is_stale and not only_check:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text)
    if is_stale:
        print(f"{PAGE}: {'stale' if only_check else 'written'}")
    return int(only_check and is_stale)


if __name__ == "__main__":
    sys.exit(main())
