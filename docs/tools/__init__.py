"""Tools of `make docs`, which are not installed: man pages, completions and the pages of commands, settings and Python."""
