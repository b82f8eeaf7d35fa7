"""`hibali runs`: what was run, and where its results are."""

from hibali_cli.command import folder_group

command = folder_group(
    "runs", package=__name__, help_text="Look at runs, wait for them, cancel them and collect their outputs."
)
