"""`hibali pipelines image add`."""

from __future__ import annotations

from pathlib import Path

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "add",
    resumes=True,
    examples=[
        (
            "hibali pipelines image add fsl_bet@1.0.0 --archive bet.tar",
            "Keep what `docker save` or `podman save` wrote as the image of this version.",
        ),
        ("hibali pipelines image add fsl_bet --archive bet.sif", "Keep a SIF, of the version added last."),
    ],
)
@click.argument("pipeline")
@click.option(
    "--archive", metavar="FILE", required=True, help="A docker-archive, an OCI layout in a tar, or a SIF."
)
def command(common: Common, pipeline: str, archive: str) -> int | None:
    """Keep an archive as the image of a pipeline.

    It has to be whole, and of the image that the descriptor names. A version has one image for ever: another one is refused (8).
    Publish the pipeline to leave the image at a remote, too; sign it again, if it is signed.
    """
    from hibali_cli.catalogue import open_catalogue
    from hibali_cli.image_record import tell_image

    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    record, change = catalogue.images.add(found, Path(archive))
    tell_image(common, catalogue, found, record, change)
    return None
