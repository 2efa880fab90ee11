"""The README on an index of packages: no link leads nowhere."""

from __future__ import annotations

import re

from tools.index_page import ROOT, index_page, with_links

TEXT = """![a report](docs/report.png)
[first steps](docs/start.md), [here](#features), [torch](https://pytorch.org)

```
[not a link](docs/x.md)
```
"""


def test_links_lead_into_the_repository():
    made = with_links(TEXT, "https://example.org/spyre/")
    assert "![a report](https://example.org/spyre/raw/HEAD/docs/report.png)" in made
    assert "[first steps](https://example.org/spyre/blob/HEAD/docs/start.md), [here](#feat" in made
    assert "[torch](https://pytorch.org)" in made
    assert "[not a link](docs/x.md)" in made


def test_without_a_repository_links_are_text():
    made = with_links(TEXT, "")
    assert made.startswith("\nfirst steps, [here](#features), [torch](https://pytorch.org)")
    assert "[not a link](docs/x.md)" in made


def test_the_readme_has_no_relative_link_left():
    page = index_page()
    assert page.startswith("# spyre")
    assert not re.search(r"\]\((?!https?:|#)", page)
    assert len(page.splitlines()) == len((ROOT / "README.md").read_text().splitlines())
