"""How Sphinx makes pages of this folder; see build.sh."""

project = "hibali"
author = "the authors of hibali"

extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = "hibali"
html_copy_source = False
html_show_sphinx = False

exclude_patterns = ["build.sh", "conf.py", "tools"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Indented blocks are what people type or read, of many kinds: no language is guessed.
highlight_language = "none"
# What a command prints is not copied.
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
