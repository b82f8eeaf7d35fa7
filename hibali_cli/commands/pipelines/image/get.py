"""`hibali pipelines image get`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "get",
    resumes=True,
    examples=[
        ("hibali pipelines image get fsl_bet --from lab", "Bring the image's content to this machine.")
    ],
)
@click.argument("pipeline")
@click.option("--from", "remote_name", metavar="REMOTE", required=True, help="The remote that has it.")
def command(common: Common, pipeline: str, remote_name: str) -> int | None:
    """Bring the content of a pipeline's image from a remote.

    `pipelines fetch` brings what is known of the image; this brings its bytes. They are kept only if they are what was published (else 8).
    Killed, it goes on where it was.
    """
    from hibali_cli.catalogue import open_catalogue
    from hibali_cli.image_record import tell_image
    from hibali_cli.image_shelves import require_shelf

    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    record, change = catalogue.images.receive(found, require_shelf(common, remote_name).get, remote_name)
    tell_image(common, catalogue, found, record, change)
    return None
