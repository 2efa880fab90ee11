"""The site of the docs: sources of its pages. CI builds it and follows every link."""

from __future__ import annotations

import re

import pytest

from spyre.codes import diagnostic_codes
from tools import site
from tools.docs import DOCS


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sources")
    site.gather(directory)
    return directory


def test_every_page_is_among_the_contents(sources):
    index = (sources / "index.md").read_text()
    contents = re.findall(r"```\{toctree\}.*?```", index, re.DOTALL)
    named = {line for block in contents for line in block.splitlines() if line.endswith(".md")}
    pages = {path.relative_to(sources).as_posix() for path in sources.rglob("*.md")}
    codes = {page for page in pages if page.startswith("errors/")}
    assert pages - named - codes == {"index.md"}


def test_every_code_has_a_page(sources):
    table = (sources / "errors.md").read_text()
    listed = re.findall(r"\[(SPY\d{3})\]\(errors/\1\.md\)", table)
    assert listed == sorted(diagnostic_codes())
    pages = {page.stem: page.read_text() for page in (sources / "errors").iterdir()}
    assert sorted(pages) == listed
    assert all(re.search(rf"^# {code}: \S", page, re.M) for code, page in pages.items())
    assert "(spy704)=\n# SPY704: tiles advance by a step" in pages["SPY704"]
    assert "```text\nwarning[SPY704]: " in pages["SPY704"]


def test_links_to_the_repository_lead_to_pages(sources):
    text = "[codes](../spyre/codes/codes.toml) [all](docs/cli.md#options) [new](../CHANGELOG.md)"
    made = site._with_links(text.replace("docs/", "../docs/"), DOCS, sources, sources)
    assert made == "[codes](errors.md) [all](cli.md#options) [new](CHANGELOG.md)"
    deep = site._with_links("[map](../contributing-map.md)", DOCS / "decisions",
                            sources / "decisions", sources)  # fmt: skip
    assert deep == "[map](../contributing-map.md)"


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path, monkeypatch, capfd):
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "conf.py").write_text((DOCS / "conf.py").read_text().replace('["static"]', "[]"))
    (docs / "index.md").write_text("# Index\n\nAll:\n\n- [one](one.md)\n")
    (docs / "one.md").write_text("# One\n\n[gone](two.md)\n")
    monkeypatch.setattr(site, "draw_pictures", lambda to: None)
    monkeypatch.setattr(site, "gather", lambda to: [
        (to / page.name).write_text(site._with_contents(page.read_text()) if page.stem == "index"
                                    else page.read_text()) for page in docs.iterdir()
    ])  # fmt: skip
    assert site.build(tmp_path / "out") == 1
    assert "two.md" in capfd.readouterr().err
    (docs / "one.md").write_text("# One\n\n[back](index.md)\n")
    assert site.build(tmp_path / "out") == 0


def test_pictures_of_the_tutorial_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "_compiled", lambda page, directory: site.ROOT / "examples/softmax")
    site.draw_pictures(tmp_path)
    drawn = {path.relative_to(tmp_path / "tutorial").as_posix() for path in tmp_path.rglob("*.svg")}
    pages = "".join(page.read_text() for page in (DOCS / "tutorial").glob("*.md"))
    shown = set(re.findall(r"!\[[^\]]+\]\((.*?)\)", pages))
    assert len(shown) == 6
    assert shown <= drawn
