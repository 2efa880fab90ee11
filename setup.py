"""Adds the README to the metadata of pyproject.toml, with links that work on an index."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))

from tools.index_page import index_page

setup(long_description=index_page(), long_description_content_type="text/markdown")
