from .html import (
    Content as Content,
    Markup as Markup,
    document as document,
    inside as inside,
    palette as palette,
    tag as tag,
    theme_button as theme_button,
)
from .page import (
    write_report as write_report,
)
