"""Sphinx: `make docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

project = "gdpa_inductor"
copyright = "2026, the gdpa_inductor authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "gdpa_inductor"
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "none"
exclude_patterns = ["_build", "tools"]
myst_heading_anchors = 4
# Docstrings mark code with single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
