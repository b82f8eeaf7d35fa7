"""Tools of `make docs`, which are not installed: man pages, completions, the pages of commands, settings and Python, and the transcript of all commands."""
