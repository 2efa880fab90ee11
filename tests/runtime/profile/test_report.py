"""The page: complete, self-contained, escaped; opened in a headless browser where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import spyre
from spyre.errors import ProfileError
from spyre.runtime.drawing import tag
from spyre.runtime.profile.files import write_whole
from spyre.runtime.profile.report import bottlenecks_of, report_page

SECTIONS = ("summary", "bottlenecks", "kernels", "roofline", "lx", "hbm", "cores", "counters")
VOID = ("meta", "link", "wbr")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Page(HTMLParser):
    """Elements of a page; fails where they do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.urls: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.ids |= {named["id"]} if "id" in named else set()
        self.urls += [named[k] for k in ("href", "src", "action") if k in named]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(softmax):
    return report_page(spyre.profile(softmax), '<script>alert("x")</script> & co')


def test_sections(page):
    assert set(SECTIONS) <= Page(page).ids


def test_it_needs_nothing_else(page):
    assert all(url.startswith(("#", "data:,")) for url in Page(page).urls)
    assert not re.search(r"@import|url\(|https?:|//[a-z]", page.replace("default-src", ""))


def test_text_is_escaped(page):
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; co" in page
    assert tag("p", "<b>", title='"<') == '<p title="&quot;&lt;">&lt;b&gt;</p>'


def section(page: str, key: str) -> str:
    return page.split(f'<section id="{key}"')[1].split("</section>")[0]


def test_lx_and_the_roofline_are_drawn(page, matmul):
    assert section(page, "lx").count('class="content colour-') == 3
    assert page.count(' point"') == 5
    product = report_page(spyre.profile(matmul))
    assert "No kernel uses the scratchpads." in product
    assert re.search(r'<circle[^>]*class="bound-memory point"', product)


def test_bottlenecks_say_what_would_help(page, softmax, matmul):
    profile = spyre.profile(softmax)
    first, *others = found = bottlenecks_of(profile)
    assert (first.name, first.time_ns) == ("launching", profile.launch_ns)
    assert [each.time_ns for each in found] == sorted((e.time_ns for e in found), reverse=True)
    assert all("8 of 32 work" in each.help for each in others)
    assert all(0 <= each.saved_ns <= each.time_ns for each in others)
    assert re.findall(r"<li><strong>(.*?)</strong>", section(page, "bottlenecks")) == [
        each.name.replace(">", "&gt;") for each in found
    ]
    (product,) = (each for each in bottlenecks_of(spyre.profile(matmul)) if "execute" in each.name)
    assert product.why.startswith("waits for HBM: ")


def test_hbm_and_cores_are_drawn(page):
    """A region per tensor and that of programs; a chart per quantity that cores have."""
    hbm, cores = section(page, "hbm"), section(page, "cores")
    assert hbm.count("<polygon") == 3
    moved = ["HBM read", "HBM written", "LX read", "LX written"]
    names = re.findall("<strong>(.*?),", cores)
    assert names == ["busy", *moved, "element operations", "sticks"]
    assert cores.count('class="bar"') == 32 * len(names)
    assert "No core has any of: sent over the ring, multiply-adds." in cores


def test_without_any_launch():
    from spyre.runtime.profile.profile import make_profile

    assert set(SECTIONS) <= Page(report_page(make_profile(()))).ids


def test_files_appear_whole(tmp_path, softmax):
    spyre.profile(softmax).report(tmp_path / "out.html")
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]
    with pytest.raises(ProfileError, match="SPY782"):
        write_whole(tmp_path, b"")
    with pytest.raises(ProfileError, match="does not exist"):
        write_whole(tmp_path / "none" / "out.html", b"")


# --- in a browser -------------------------------------------------------------------------------

PROBE = """<script>
const first = document.querySelector("#executes-table thead button");
first.focus();
const heads = [...document.querySelectorAll("#executes-table thead button")];
const time = heads.find((head) => head.textContent === "time");
time.click();
document.getElementById("theme").click();
const search = document.getElementById("search");
search.value = "exp";
search.dispatchEvent(new Event("input"));
const found = document.getElementById("matches").textContent;
search.value = "";
search.dispatchEvent(new Event("input"));
const chart = document.querySelector(".zoom").previousElementSibling.querySelector("svg.chart");
const box = chart.getBoundingClientRect();
const kernel = chart.querySelector(".span.bound-pt");
const pointer = (target, kind, part) => target.dispatchEvent(new PointerEvent(kind,
  { clientX: box.left + part * box.width, bubbles: true }));
pointer(kernel, "pointerdown", 0.5);
pointer(kernel, "pointerup", 0.5);
const clicked = search.value !== "" && kernel.textContent.includes(search.value);
search.value = "";
search.dispatchEvent(new Event("input"));
const size = () => Number(document.querySelector("svg.plot").getAttribute("viewBox").split(" ")[2]);
const whole = size();
chart.dispatchEvent(new WheelEvent("wheel",
  { clientX: box.left + box.width / 2, deltaY: -1, ctrlKey: true, cancelable: true }));
const wheeled = Math.abs(size() / whole - 0.8) < 1e-9;
pointer(chart, "pointerdown", 0.4);
pointer(chart, "pointerup", 0.6);
const dragged = size() < 0.3 * whole;
for (let k = 0; k < 5; k++) document.querySelectorAll(".zoom button")[1].click();
document.querySelector(".zoom button").click();
const shown = document.querySelector(".zoom output").textContent;
const part = document.querySelector("svg.plot").getAttribute("viewBox").split(" ");
const rows = [...document.querySelectorAll("#executes-table tbody tr")];
document.title = [rows[0].cells[1].textContent, rows.at(-1).cells[1].textContent,
  document.documentElement.dataset.theme, document.activeElement === first,
  document.documentElement.scrollWidth <= innerWidth, found.startsWith("2 of"),
  shown.includes(" to "), part[2] === "428", clicked, wheeled, dragged].join(" ");
</script>"""


def opened(page: str, directory: Path, width: int = 1280) -> tuple[str, list[str]]:
    """Return the page's DOM after its script has run, and the script's output on the console.

    ``width``: of the window in pixels.
    """
    file = directory / "page.html"
    file.write_text(page)
    arguments = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--window-size={width},900",
    )
    ran = subprocess.run(
        [
            *(BROWSER, *arguments, "--enable-logging=stderr", "--virtual-time-budget=2000"),
            *(f"--user-data-dir={directory / 'profile'}", "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="no headless Chromium on this machine")
class TestBrowser:
    @pytest.mark.parametrize("width", [1280, 420])
    def test_it_opens_without_an_error(self, page, tmp_path, width):
        """Tables sort, the theme changes, the keyboard gets there, nothing is wider than a page."""
        dom, console = opened(page.replace("</body>", PROBE + "</body>"), tmp_path, width)
        assert console == []
        assert all(f'<section id="{key}"' in dom for key in SECTIONS)
        assert dom.count("<svg viewBox") == 4 + 7
        assert dom.count('class="plot"') == 1
        title = re.search("<title>(.*?)</title>", dom)
        assert title is not None
        order, theme, rest = re.fullmatch(r"(\w+ \w+) (\w+) (.*)", title[1]).groups()
        assert (order, rest) == ("max sum", " ".join(["true"] * 8))
        assert theme in ("dark", "light")
        assert re.search('aria-sort="descending"><button[^>]*>time', dom)

    def test_an_error_would_be_seen(self, page, tmp_path):
        broken = page.replace("</body>", "<script>nothing.there()</script></body>")
        outside = '<img src="https://example.invalid/x.png" alt="">'
        _, console = opened(broken.replace("<main>", "<main>" + outside), tmp_path)
        assert any("nothing is not defined" in line for line in console)
        assert any("Content Security Policy" in line for line in console)
