"""`hibali pipelines`: the containerised tools hibali can run."""

from hibali_cli.command import folder_group

command = folder_group(
    "pipelines",
    package=__name__,
    help_text="Keep Boutiques pipelines in the local catalogue, look at them and check invocations.",
)
