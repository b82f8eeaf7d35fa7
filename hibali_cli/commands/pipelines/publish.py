"""`hibali pipelines publish`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "publish",
    resumes=True,
    examples=[
        ("hibali pipelines publish fsl_bet@1.0.0 --to lab", "Leave one version for others."),
        ("hibali pipelines publish --to lab", "Leave all that are in the catalogue."),
    ],
)
@click.argument("pipelines", nargs=-1)
@click.option("--to", "remote_name", metavar="REMOTE", required=True, help="The remote to leave them at.")
def command(common: Common, pipelines: tuple[str, ...], remote_name: str) -> int | None:
    """Leave pipelines at a remote for other sites.

    PIPELINES are NAME or NAME@VERSION; none means all. What is there stays; other content under the same name and version
    is refused (8), and then nothing was published. The content of an image goes first, where the remote has a place for images
    and does not have it yet.
    """
    from hibali.errors import IncompleteError
    from hibali.files import account_names
    from hibali_cli.catalogue import open_catalogue
    from hibali_cli.exchanging import open_remote, show_exchanged
    from hibali_cli.image_shelves import open_shelf
    from registry.exchange import publish

    catalogue = open_catalogue(common)
    remote, seen = open_remote(common, remote_name)
    wanted = [catalogue.find(each) for each in pipelines] or catalogue.all()
    by = account_names()[1]
    shelf = open_shelf(common, remote_name)
    done = publish(catalogue, remote, remote_name, seen, wanted, by, shelf)
    show_exchanged(common, remote_name, done)
    missing = [each.pipeline.reference for each in done if each.content == "missing"]
    if missing:
        raise IncompleteError(
            "image-not-here",
            f"the content of {len(missing)} images is neither there nor here",
            about=", ".join(missing[:5]),
            hint="Get it where it is, and publish again: hibali pipelines image get NAME --from REMOTE",
        )
    return None
