"""`hibali sites`: the places hibali knows."""

from hibali_cli.command import folder_group

command = folder_group(
    "sites",
    package=__name__,
    help_text="Name the places data and pipelines go to, and check that they answer.",
)
