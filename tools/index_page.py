"""The README as an index of packages shows it, where relative links would lead nowhere.

setup.py calls this when the package is built. With `Repository` in `[project.urls]` of
pyproject.toml, relative links and pictures become links into the repository. Without it, links
become their text, and pictures are left out.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def index_page(root: Path = ROOT) -> str:
    """Return the text of README.md with links that work outside of the repository."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (root / "README.md").read_text(encoding="utf-8")
    return with_links(text, project.get("urls", {}).get("Repository", ""))


def with_links(text: str, repository: str) -> str:
    """Return ``text`` with its relative links led to ``repository``, or ("") without them."""

    def replace(link: re.Match[str]) -> str:
        picture, name, target = link.groups()
        if not repository:
            return "" if picture else name
        kind = "raw" if picture else "blob"
        return f"{picture}[{name}]({repository.rstrip('/')}/{kind}/HEAD/{target})"

    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts)
