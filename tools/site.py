"""Builds the documentation as a site: `python -m tools.site [DIRECTORY]` (extra ``docs``).

The site has the pages of ``docs/``, those of the codes, the changelog and the contributors' page. A
broken link, a missing heading or a page in no list of contents ends the build with exit code 1.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spyre.__main__ import main as spyre_command
from tools.docs import DOCS, ROOT, error_page
from tools.error_page import code_pages, page_of

DEFAULT = ROOT / "build" / "site"
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages at the root of the repository that are part of the site."""
CODES = "spyre/codes/codes.toml"
_LINK = re.compile(
    r"\]\((?P<target>(?:\.\./)+[^)#]*|(?:docs|spyre|examples)/[^)#]*)(?P<anchor>#[^)]*)?\)"
)
_LIST = re.compile(r"^([A-Z][^\n]*):\n\n((?:- [^\n]*\n(?:  [^\n]*\n)*)+)", re.MULTILINE)
_PAGE = re.compile(r"\]\(([\w/.-]+\.md)\)")


def gather(sources: Path) -> None:
    """Copy the pages of the site into an empty directory."""
    shutil.copytree(DOCS, sources, dirs_exist_ok=True)
    _write_codes(sources)
    for name in BESIDE:
        shutil.copyfile(ROOT / name, sources / name)
    for page in sources.rglob("*.md"):
        home = ROOT if page.name in BESIDE else DOCS / page.relative_to(sources).parent
        text = page.read_text(encoding="utf-8")
        page.write_text(_with_links(text, home, page.parent, sources), encoding="utf-8")
    index = sources / "index.md"
    index.write_text(_with_contents(index.read_text(encoding="utf-8")), encoding="utf-8")


def _write_codes(sources: Path) -> None:
    """Write the tables of codes, and the pages that explain them."""
    tables = re.sub(r"<!-- table: sections-\d -->.*?<!-- end -->\n", "", error_page(), flags=re.S)
    text = re.sub(r"\[(SPY\d{3})\]\(#spy\d{3}\)", lambda m: f"[{m[1]}]({page_of(m[1])})", tables)
    (sources / "errors.md").write_text(text, encoding="utf-8")
    (sources / "errors").mkdir()
    for name, page in code_pages().items():
        (sources / name).write_text(page, encoding="utf-8")


PICTURES = Path("tutorial", "pictures")
"""Folder of the tutorial's pictures, which are drawn when the site is built."""
DRAWN_EXAMPLES = ("add_loop", "matmul", "softmax")
COMPILED = ("attention", "4-from-torch-compile-to-the-report.md")
"""Name of the pictures, and the page, of a tutorial page that compiles a program."""


def draw_pictures(sources: Path) -> None:
    """Draw the pictures of the tutorial: of the examples, and of a page's compiled program."""
    for name in DRAWN_EXAMPLES:
        _draw(ROOT / "examples" / name, sources / PICTURES / name)
    name, page = COMPILED
    with tempfile.TemporaryDirectory() as temporary:
        programs = _compiled((DOCS / "tutorial" / page).read_text(encoding="utf-8"), temporary)
        _draw(programs, sources / PICTURES / name)


def _draw(bundle: Path, directory: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        code = spyre_command(["explain", str(bundle), "--svg", str(directory)])
    if code:
        raise SystemExit(f"{bundle} cannot be drawn")
    (directory / "index.html").unlink()


def _compiled(page: str, directory: str) -> Path:
    """Run the Python file in a page and return the program it compiles; needs torch."""
    body = re.search(r"<!-- file: .*? -->\n```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert body is not None
    source = Path(directory) / "page.py"
    source.write_text(body[1], encoding="utf-8")
    settings = {"SPYRE_KEEP": f"{directory}/programs", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(source)], env={**os.environ, **settings}, check=True)
    (program,) = (Path(directory) / "programs").iterdir()
    return program


def _with_links(text: str, home: Path, here: Path, sources: Path) -> str:
    """Rewrite the links of a page in ``home`` for its copy in ``here``, a folder of the site."""

    def replace(link: re.Match[str]) -> str:
        target = (home / link["target"]).resolve()
        if target == ROOT / CODES:
            place = sources / "errors.md"
        elif target.name in BESIDE and target.parent == ROOT:
            place = sources / target.name
        elif target.is_relative_to(DOCS):
            place = sources / target.relative_to(DOCS)
        else:
            place = target  # a file of the repository, which the site offers as it is
        return f"]({_relative(place, here)}{link['anchor'] or ''})"

    return _LINK.sub(replace, text)


def _relative(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path, start)).as_posix()


def _with_contents(index: str) -> str:
    """Return the first page with its lists of pages added as the site's contents."""
    contents = []
    for caption, links in _LIST.findall(index):
        pages = "\n".join(dict.fromkeys(_PAGE.findall(links)))
        contents.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n")
    return "\n".join([index, *contents])


def build(directory: Path) -> int:
    """Build the site into ``directory``; return Sphinx's exit code, 1 for any warning."""
    with tempfile.TemporaryDirectory() as temporary:
        sources = Path(temporary)
        gather(sources)
        draw_pictures(sources)
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n"]
        return subprocess.run([*command, str(sources), str(directory)], check=False).returncode


def main(arguments: Sequence[str]) -> int:
    directory = Path(arguments[0]) if arguments else DEFAULT
    code = build(directory)
    if code == 0:
        print(f"{directory / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
