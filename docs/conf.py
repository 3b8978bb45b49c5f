"""Sphinx: `make docs`."""

project = "gdpa_inductor"
copyright = "2026, the gdpa_inductor authors"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
