"""`hibali pipelines image show`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "show",
    examples=[("hibali pipelines image show fsl_bet", "See which image it is, and whether it is here.")],
)
@click.argument("pipeline")
def command(common: Common, pipeline: str) -> int | None:
    """Show what is known of a pipeline's image.

    PIPELINE is NAME or NAME@VERSION. Without an image it ends with 3.
    """
    from hibali_cli.image_record import image_fields
    from registry.catalogue import Catalogue

    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    record = catalogue.images.require(found)
    file = catalogue.images.here(found, record)
    if common.json:
        told = {"name": found.name, "version": found.version, **image_fields(record, here=file is not None)}
        common.output.record("image", {**told, **({"file": str(file)} if file else {})})
    else:
        common.output.pairs(
            {
                "pipeline": found.reference,
                "digest": record.digest,
                "id": record.id,
                "format": record.format,
                "size": record.size,
                "names": ", ".join(record.names),
                "file": str(file) if file else "not here",
            }
        )
    return None
