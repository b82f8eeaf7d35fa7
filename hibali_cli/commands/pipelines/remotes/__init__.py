"""`hibali pipelines remotes`: where sites leave pipelines for each other."""

from hibali_cli.command import folder_group

command = folder_group(
    "remotes",
    package=__name__,
    help_text="Name the places where sites leave pipelines for each other.",
)
