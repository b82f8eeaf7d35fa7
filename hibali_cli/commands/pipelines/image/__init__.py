"""`hibali pipelines image`: the container images of pipelines."""

from hibali_cli.command import folder_group

command = folder_group(
    "image",
    package=__name__,
    help_text="Keep the container images of pipelines, pinned by digest, and get them from remotes when wanted.",
)
