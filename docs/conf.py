"""The documentation as a site: ``python -m tools.site`` builds it with Sphinx."""

from importlib import metadata

project = "spyre"
author = "the spyre authors"
release = metadata.version("spyre")
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
highlight_language = "text"  # what has no language is output or a command
# Examples of output and formats of our own have no lexer.
suppress_warnings = ["misc.highlighting_failure"]
html_theme = "furo"
html_title = "spyre"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"sidebar_hide_name": False}
exclude_patterns = ["conf.py"]
