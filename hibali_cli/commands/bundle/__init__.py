"""`hibali bundle`: a run as one file, which a peer repeats."""

from hibali_cli.command import folder_group

command = folder_group(
    "bundle",
    package=__name__,
    help_text="Put a run into one file, and repeat it elsewhere from there, comparing what it leaves.",
)
