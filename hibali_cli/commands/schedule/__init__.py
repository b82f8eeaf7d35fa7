"""`hibali schedule`: commands that run by themselves."""

from hibali_cli.command import folder_group

command = folder_group(
    "schedule",
    package=__name__,
    help_text="Let commands run by themselves at set times, and see how that goes.",
)
