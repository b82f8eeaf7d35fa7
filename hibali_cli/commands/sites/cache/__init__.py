"""`hibali sites cache`: the inputs and images that runs left at a site."""

from hibali_cli.command import folder_group

command = folder_group(
    "cache",
    package=__name__,
    help_text="See what inputs and images a site keeps for later runs, and take out what nobody needs.",
)
