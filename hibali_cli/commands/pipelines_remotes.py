"""`hibali pipelines remotes`, `publish`, `fetch` and `image`: exchange pipelines and images."""

from __future__ import annotations

import click

from hibali_cli.command import command, command_group
from hibali_cli.options import NEW_NAME, OUTPUT_PLACE


@command(
    "add",
    calls="hibali_cli.handlers.pipeline_exchange:configure_remote",
    examples=[
        ("hibali pipelines remotes add lab git@git.example.org:lab/pipelines.git", "Add a git repository."),
        (
            "hibali pipelines remotes add lab ria+ssh://store.example.org/data/ria#ID",
            "Add a dataset in a RIA store.",
        ),
        ("hibali pipelines remotes add lab /project/shared/pipelines", "Add a shared folder of a project."),
        (
            "hibali pipelines remotes add lab juwels:@project/pipelines",
            "Add a folder at a site, or a prefix of a bucket.",
        ),
    ],
)
@click.argument("name", type=NEW_NAME)
@click.argument("url", type=OUTPUT_PLACE)
@click.option(
    "--images",
    metavar="PLACE",
    help="Store images in this folder or SITE:PATH (default: .images below URL, except for git).",
)
@click.option("--replace", is_flag=True, help="Replace an existing remote with that name.")
def remotes_add_command() -> None:
    """Add a remote through which sites exchange pipelines.

    URL is a git repository, a dataset in a RIA store, a folder, or SITE:PATH at a site of config.toml. hibali does not connect to it yet.
    """


@command(
    "list",
    calls="hibali_cli.handlers.pipeline_exchange:list_remotes",
    examples=[("hibali pipelines remotes list", "Show every remote and its URL.")],
)
def remotes_list_command() -> None:
    """List the remotes of config.toml."""


@command(
    "remove",
    calls="hibali_cli.handlers.pipeline_exchange:forget_remote",
    examples=[
        ("hibali pipelines remotes remove lab", "Remove lab from the configuration; its content is kept.")
    ],
)
@click.argument("name")
def remotes_remove_command() -> None:
    """Remove a remote from config.toml.

    Fetched pipelines and the content of the remote are kept.
    """


remotes_command = command_group(
    "remotes",
    commands=(
        remotes_add_command,
        remotes_list_command,
        remotes_remove_command,
    ),
    help_text="Manage the remotes through which sites exchange pipelines.",
)


@command(
    "add",
    calls="hibali_cli.handlers.pipeline_exchange:add_image",
    resumes=True,
    examples=[
        (
            "hibali pipelines image add fsl_bet@1.0.0 --archive bet.tar",
            "Store an archive of `docker save` or `podman save` as the image of this version.",
        ),
        ("hibali pipelines image add fsl_bet --archive bet.sif", "Store a SIF for the version added last."),
    ],
)
@click.argument("pipeline")
@click.option(
    "--archive", metavar="FILE", required=True, help="A docker-archive, an OCI layout in a tar, or a SIF."
)
def image_add_command() -> None:
    """Store an archive as the image of a pipeline.

    It must be complete, and hold the image that the descriptor names. The image of a version never changes: another one is refused (8).
    Publish the pipeline to upload the image to a remote, too; sign it again, if it is signed.
    """


@command(
    "drop",
    calls="hibali_cli.handlers.pipeline_exchange:drop_image",
    examples=[
        ("hibali pipelines image drop fsl_bet@1.0.0", "Remove the local copy; a remote has the image."),
        ("hibali pipelines image drop fsl_bet@1.0.0 --force", "Remove it, even if no remote has it."),
    ],
)
@click.argument("pipeline")
@click.option("--force", is_flag=True, help="Remove it even if no remote has it.")
def image_drop_command() -> None:
    """Remove the content of a pipeline's image from this machine.

    The record of the image is kept, and `get` fetches the content again. Without a reachable remote that has it, the command is refused (8).
    """


@command(
    "get",
    calls="hibali_cli.handlers.pipeline_exchange:get_image",
    resumes=True,
    examples=[("hibali pipelines image get fsl_bet --from lab", "Fetch the image to this machine.")],
)
@click.argument("pipeline")
@click.option("--from", "remote_name", metavar="REMOTE", required=True, help="The remote that has it.")
def image_get_command() -> None:
    """Fetch the image of a pipeline from a remote.

    `pipelines fetch` fetches the record of the image; this command fetches its content, which must match the record (else exit 8).
    After an interruption, it resumes.
    """


@command(
    "show",
    calls="hibali_cli.handlers.pipelines:show_image",
    examples=[("hibali pipelines image show fsl_bet", "Show the image, and its local file if there is one.")],
)
@click.argument("pipeline")
def image_show_command() -> None:
    """Show the image of a pipeline.

    PIPELINE is NAME or NAME@VERSION. Without an image, the exit code is 3.
    """


image_command = command_group(
    "image",
    commands=(
        image_add_command,
        image_drop_command,
        image_get_command,
        image_show_command,
    ),
    help_text="Manage the container images of pipelines, pinned by digest, and fetch them from remotes.",
)
