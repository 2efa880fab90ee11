"""What each core did, as small bar charts of one quantity each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spyre.hw.nest import Int64Array
from spyre.runtime.profile.core_balance import CoreBalance, imbalance
from spyre.runtime.profile.kernel_model import Float64Array
from spyre.runtime.profile.report.svg import Frame, Markup, inside, tag
from spyre.runtime.profile.table import imbalance_text, time_text
from spyre.runtime.units import format_bytes

FRAME = Frame(width=460.0, height=132.0, left=8.0, right=8.0, top=10.0, bottom=22.0)


@dataclass(frozen=True, eq=False)
class Quantity:
    """``values``: [CORES]; ``text``: how one of them is shown."""

    name: str
    values: Int64Array | Float64Array
    text: Callable[[float], str]

    @property
    def imbalance(self) -> float | None:
        """The most over the mean of the cores that have some."""
        return imbalance(self.values)


def quantities(found: CoreBalance) -> tuple[Quantity, ...]:
    """What is shown of cores, in the order of the charts and of the table's columns."""
    return (
        Quantity("busy", found.busy_ns, time_text),
        Quantity("HBM read", found.count("hbm_read_bytes"), _bytes),
        Quantity("HBM written", found.count("hbm_written_bytes"), _bytes),
        Quantity("LX read", found.count("lx_read_bytes"), _bytes),
        Quantity("LX written", found.count("lx_written_bytes"), _bytes),
        Quantity("sent over the ring", found.count("ring_bytes"), _bytes),
        Quantity("multiply-adds", found.count("multiply_adds"), _number),
        Quantity("element operations", found.count("element_operations"), _number),
        Quantity("sticks", found.sticks, _number),
    )


def core_charts(shown: Sequence[Quantity]) -> Markup:
    """A chart per quantity that any core has; what none has is named below."""
    used = [quantity for quantity in shown if quantity.values.any()]
    rest = [quantity.name for quantity in shown if not quantity.values.any()]
    pieces = [tag("div", [_figure(quantity) for quantity in used], class_="cores")]
    if rest:
        pieces.append(tag("p", f"No core has any of: {', '.join(rest)}."))
    return inside(pieces)


def _figure(quantity: Quantity) -> Markup:
    values = quantity.values
    used = values[values > 0]
    most, mean = (quantity.text(float(value)) for value in (values.max(), used.mean()))
    even = imbalance_text(quantity.imbalance)
    told = f"{most} at most, {mean} mean of {len(used)} cores"
    label = f"{quantity.name} of every core: {told}, {even}"
    box = f"0 0 {FRAME.width:g} {FRAME.height:g}"
    drawn = tag(
        "svg",
        [tag("title", label), *_bars(quantity, float(used.mean()))],
        viewBox=box,
        role="img",
        aria_label=label,
        class_="chart",
    )
    head = [tag("strong", f"{quantity.name}, {even}"), tag("span", told)]
    return tag("figure", [tag("figcaption", head), drawn])


def _bars(quantity: Quantity, mean: float) -> Iterator[Markup]:
    """A bar per core, the number of every fourth, and a line at the mean."""
    values = quantity.values.tolist()
    most, width = max(values), 1.0 / len(values)
    for core, value in enumerate(values):
        left, right = FRAME.x((core + 0.12) * width), FRAME.x((core + 0.88) * width)
        top = FRAME.y(value / most)
        yield tag(
            "rect",
            tag("title", f"core {core}: {quantity.text(value)}"),
            x=left,
            y=top,
            width=right - left,
            height=FRAME.base - top,
            class_="bar",
        )
        if core % 4 == 0:
            middle = (left + right) / 2
            yield tag("text", str(core), x=middle, y=FRAME.height - 6, class_="tick middle")
    y = FRAME.y(mean / most)
    yield tag("line", x1=FRAME.left, x2=FRAME.end, y1=y, y2=y, class_="mean")


def _bytes(value: float) -> str:
    return format_bytes(round(value)) if value else "-"


def _number(value: float) -> str:
    return f"{round(value):,}" if value else "-"
