"""`hibali pipelines publish`, `fetch`, `sign`, `remotes`, `image get`, `image drop`, and `search --zenodo`."""

from __future__ import annotations

import click

from hibali_cli.command import AddedOptions, command, command_group
from hibali_cli.options import NEW_NAME, OUTPUT_PLACE


@command(
    "publish",
    section="Sharing",
    calls="hibali_plugins.exchange.exchanging:publish_pipelines",
    resumes=True,
    examples=[
        ("hibali pipelines publish fsl_bet@1.0.0 --to lab", "Publish one version."),
        ("hibali pipelines publish --to lab", "Publish all pipelines of the catalogue."),
        (
            "hibali pipelines publish fsl_bet@1.0.0 --zenodo",
            "Publish one at Zenodo, permanently and with a DOI.",
        ),
    ],
)
@click.argument("pipelines", nargs=-1)
@click.option("--to", "remote_name", metavar="REMOTE", help="The remote to publish to.")
@click.option("--zenodo", is_flag=True, help="Publish the descriptors at Zenodo, which gives each a DOI.")
@click.option("--sandbox", is_flag=True, help="With --zenodo: at sandbox.zenodo.org, to try it.")
@click.option("-y", "--yes", is_flag=True, help="With --zenodo: do not ask.")
def publish_command() -> None:
    """Publish pipelines at a remote, or at Zenodo.

    PIPELINES are NAME or NAME@VERSION; without one, all are published. Pipelines at the remote are never changed: different content
    under the same name and version is refused (8), and then nothing is published. Images are uploaded first, if the remote has
    an image store that does not have them yet.

    With --zenodo each descriptor becomes a public record with a DOI, which cannot be taken back. It needs an author and a container
    image, and a token in ZENODO_TOKEN. A descriptor that was published before is not published again, also after a kill.
    """


@command(
    "fetch",
    section="Sharing",
    calls="hibali_plugins.exchange.exchanging:fetch_pipelines",
    resumes=True,
    examples=[
        ("hibali pipelines fetch --from lab", "Fetch all pipelines of the remote lab."),
        ("hibali pipelines fetch fsl_bet --from lab", "Fetch all versions of one pipeline."),
    ],
)
@click.argument("pipelines", type=NEW_NAME, nargs=-1)
@click.option("--from", "remote_name", metavar="REMOTE", required=True, help="The remote to fetch from.")
@click.option("--accept-rewritten", is_flag=True, help="Continue even if the remote's history was rewritten.")
def fetch_command() -> None:
    """Fetch pipelines from a remote.

    All are checked before any is added. An invalid descriptor, different content under a known version, or a missing signature
    that config.toml requires ends the command with 8 or 2, and the catalogue is not changed. Only the records of images are
    fetched; `pipelines image get` fetches their content.
    """


@command(
    "sign",
    section="Sharing",
    calls="hibali_plugins.exchange.exchanging:sign_version",
    examples=[
        (
            "hibali pipelines sign fsl_bet@1.0.0 --key ~/.ssh/id_ed25519",
            "Sign a version with your ssh key.",
        ),
    ],
)
@click.argument("pipeline")
@click.option(
    "--key",
    metavar="FILE",
    required=True,
    help="A private ssh key, or a public key whose private key is in an ssh agent.",
)
def sign_command() -> None:
    """Sign a version with an ssh key.

    The signature covers name, version, digest and the digest of the image: sign again after adding an image. It is published with the pipeline.
    """


@command(
    "add",
    calls="hibali_plugins.exchange.exchanging:configure_remote",
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
    calls="hibali_plugins.exchange.exchanging:list_remotes",
    examples=[("hibali pipelines remotes list", "Show every remote and its URL.")],
)
def remotes_list_command() -> None:
    """List the remotes of config.toml."""


@command(
    "remove",
    calls="hibali_plugins.exchange.exchanging:forget_remote",
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
    section="Sharing",
    commands=(
        remotes_add_command,
        remotes_list_command,
        remotes_remove_command,
    ),
    help_text="Manage the remotes through which sites exchange pipelines.",
)


@command(
    "get",
    calls="hibali_plugins.exchange.exchanging:get_image",
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
    "drop",
    calls="hibali_plugins.exchange.exchanging:drop_image",
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


zenodo_options = AddedOptions(
    (
        click.Option(
            ["--zenodo"],
            is_flag=True,
            help="Search the descriptors at Zenodo, those with most downloads first; add one with `pipelines add zenodo.NUMBER`.",
        ),
        click.Option(["--sandbox"], is_flag=True, help="With --zenodo: at sandbox.zenodo.org."),
    ),
    after="words",
    calls="hibali_plugins.exchange.exchanging:search",
    examples=(("hibali pipelines search --zenodo fsl", "Find descriptors that were published at Zenodo."),),
)
