"""README and docs: links resolve, tables are current, examples run, shown text is real."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from spyre.codes import diagnostic_codes
from spyre.config import VARIABLES
from spyre.hw.ops.elementwise import Family
from spyre.hw.ops.table import OPS
from tools.docs import DOCS, ERROR_PAGE, ROOT, STICK_RULES, TABLES, error_page, refresh, table
from tools.error_page import CodeKind, find_code_kinds
from tools.site import PICTURES

PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ERROR_PAGE})
"""The pages of the repository; the page of diagnostic codes is made anew."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def text_of(page: Path) -> str:
    return error_page() if page == ERROR_PAGE else page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The anchors a Markdown viewer makes of a page's headings."""
    text = FENCED.sub("", text_of(page))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [*PAGES, ERROR_PAGE], ids=page_id)
def test_relative_links_resolve(page):
    for link in LINK.findall(FENCED.sub("", text_of(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target.is_relative_to(DOCS / PICTURES):  # drawn when the site is built
            continue
        assert target.exists() or target == ERROR_PAGE, link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_tables_are_current(page):
    text = page.read_text(encoding="utf-8")
    assert refresh(text) == text, "run: python -m tools.docs"


def test_every_table_is_shown():
    text = "".join(map(text_of, [*PAGES, ERROR_PAGE]))
    assert [name for name in TABLES if f"<!-- table: {name} -->" not in text] == []


def test_tables_name_everything():
    text = "".join(make() for make in TABLES.values())
    for name in (*diagnostic_codes(), *OPS, *(v.name for v in VARIABLES)):
        assert name in text


def test_a_table_out_of_date_is_noticed():
    stale = "<!-- table: environment -->\n| old |\n<!-- end -->\nrest"
    assert "old" not in refresh(stale)
    assert refresh(stale).endswith("<!-- end -->\nrest")
    with pytest.raises(KeyError):
        refresh("<!-- table: nonsense -->\n<!-- end -->")


def test_bars_in_cells_are_escaped():
    assert table(["a"], [["|x|"]]) == "| a |\n| --- |\n| \\|x\\| |\n"


def test_every_family_is_explained():
    assert set(STICK_RULES) == set(Family)


def test_code_kinds(tmp_path):
    source = """
raise DeviceFault("SPY411", "x")
RULES = RuleSet({"SPY130": Severity.ERROR, "SPY138": Severity.WARNING}, (check,))
Fault("SPY130", 1, "x"); Fault("SPY138", 1, "x"); Fault("SPY828", 1, "x")
Finding("SPY205", Severity.WARNING, "x")
Finding("SPY150", Severity.WARNING, "x"); BundleError("SPY150", "x")
"""
    (tmp_path / "module.py").write_text(source)
    assert find_code_kinds(tmp_path) == {
        "SPY411": CodeKind(False, 1),
        "SPY130": CodeKind(False, 2),
        "SPY138": CodeKind(True, 2),
        "SPY828": CodeKind(False, 2),
        "SPY205": CodeKind(True, 2),
        "SPY150": CodeKind(False, 2),
    }


FILE = re.compile(r"`((?:spyre|tests|tools|examples|benchmarks)/[\w/.]+)`")
TYPE = re.compile(r"^\| `(\w+)`.*?\| `([\w/.]+\.py)` \|", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_named_exist(page):
    missing = [f for f in FILE.findall(text_of(page)) if not (ROOT / f).exists()]
    assert missing == []


def test_types_are_where_the_architecture_says():
    types = TYPE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(types) > 25
    for name, module in types:
        source = (ROOT / "spyre" / module).read_text(encoding="utf-8")
        assert re.search(rf"^class {name}\b", source, re.MULTILINE), (name, module)


def test_nothing_of_our_surroundings_is_named():
    for page in PAGES:
        assert not re.search(r"/work\b", page.read_text(encoding="utf-8"))
