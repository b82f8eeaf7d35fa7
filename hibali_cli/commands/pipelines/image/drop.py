"""`hibali pipelines image drop`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common

if TYPE_CHECKING:
    from registry.images.record import ImageRecord


@as_command(
    "drop",
    examples=[
        ("hibali pipelines image drop fsl_bet@1.0.0", "Make room; a remote has the image."),
        ("hibali pipelines image drop fsl_bet@1.0.0 --force", "Make room, whoever else has it."),
    ],
)
@click.argument("pipeline")
@click.option("--force", is_flag=True, help="Also where no remote has it.")
def command(common: Common, pipeline: str, *, force: bool) -> int | None:
    """Remove the content of a pipeline's image from this machine.

    What is known of the image stays, and `get` brings it back. Unless a remote of config.toml has the content now, it is refused (8).
    """
    from hibali_cli.catalogue import open_catalogue
    from hibali_cli.image_record import tell_image

    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    record = catalogue.images.require(found)
    if not force and catalogue.images.here(found, record) is not None:
        _require_elsewhere(common, found.reference, record)
    catalogue.images.drop(found)
    tell_image(common, catalogue, found, record, "dropped")
    return None


def _require_elsewhere(common: Common, reference: str, record: ImageRecord) -> None:
    """Raise `RefusedError` where no remote has the content; one that cannot be asked has not."""
    from hibali.errors import HibaliError, RefusedError
    from hibali_cli.image_shelves import open_shelf

    for name in sorted(common.settings().remotes):
        try:
            shelf = open_shelf(common, name)
            if shelf is not None and record.digest in shelf.present([record]):
                return
        except HibaliError as problem:
            common.output.warn(f"{name} was not asked: {problem.message}")
    raise RefusedError(
        "only-copy",
        "no remote has the content of this image",
        about=reference,
        hint=f"Add --force, or publish it first: hibali pipelines publish {reference} --to REMOTE",
    )
