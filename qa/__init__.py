"""Programs that look for defects: run by hand or in part by CI, each with a command line."""

from __future__ import annotations

import argparse
from pathlib import Path

BUNDLES = Path(__file__).resolve().parents[2] / "shared" / "bundles"
"""Real bundles beside the checkout."""


def directory(text: str) -> Path:
    """Return the path of an argument; the parser exits with code 2 if it is no directory."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no directory of bundles")
    return Path(text)
