"""`hibali pipelines image`: the container images of pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hibali_cli.command import command, command_group
from hibali_cli.options import Common

if TYPE_CHECKING:
    from registry.images.record import ImageRecord


@command(
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
def image_add_command(common: Common, pipeline: str, archive: str) -> int | None:
    """Keep an archive as the image of a pipeline.

    It has to be whole, and of the image that the descriptor names. A version has one image for ever: another one is refused (8).
    Publish the pipeline to leave the image at a remote, too; sign it again, if it is signed.
    """
    from hibali_cli.handlers.pipelines import open_catalogue, tell_image

    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    record, change = catalogue.images.add(found, Path(archive))
    tell_image(common, catalogue, found, record, change)
    return None


@command(
    "drop",
    examples=[
        ("hibali pipelines image drop fsl_bet@1.0.0", "Make room; a remote has the image."),
        ("hibali pipelines image drop fsl_bet@1.0.0 --force", "Make room, whoever else has it."),
    ],
)
@click.argument("pipeline")
@click.option("--force", is_flag=True, help="Also where no remote has it.")
def image_drop_command(common: Common, pipeline: str, *, force: bool) -> int | None:
    """Remove the content of a pipeline's image from this machine.

    What is known of the image stays, and `get` brings it back. Unless a remote of config.toml has the content now, it is refused (8).
    """
    from hibali_cli.handlers.pipelines import open_catalogue, tell_image

    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    record = catalogue.images.require(found)
    if not force and catalogue.images.local_file(found, record) is not None:
        _require_elsewhere(common, found.reference, record)
    catalogue.images.drop(found)
    tell_image(common, catalogue, found, record, "dropped")
    return None


def _require_elsewhere(common: Common, reference: str, record: ImageRecord) -> None:
    """Raise `RefusedError` where no remote has the content; one that cannot be asked has not."""
    from hibali.errors import HibaliError, RefusedError
    from hibali_cli.handlers.pipeline_exchange import open_image_store

    for name in sorted(common.settings().remotes):
        try:
            shelf = open_image_store(common, name)
            if shelf is not None and record.digest in shelf.present([record]):
                return
        except HibaliError as problem:
            common.output.warn(f"{name} was not asked: {problem.message}")
    raise RefusedError(
        "only-copy",
        "no remote has the content of this image",
        subject=reference,
        hint=f"Add --force, or publish it first: hibali pipelines publish {reference} --to REMOTE",
    )


@command(
    "get",
    resumes=True,
    examples=[
        ("hibali pipelines image get fsl_bet --from lab", "Bring the image's content to this machine.")
    ],
)
@click.argument("pipeline")
@click.option("--from", "remote_name", metavar="REMOTE", required=True, help="The remote that has it.")
def image_get_command(common: Common, pipeline: str, remote_name: str) -> int | None:
    """Bring the content of a pipeline's image from a remote.

    `pipelines fetch` brings what is known of the image; this brings its bytes. They are kept only if they are what was published (else 8).
    Killed, it goes on where it was.
    """
    from hibali_cli.handlers.pipeline_exchange import require_shelf
    from hibali_cli.handlers.pipelines import open_catalogue, tell_image

    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    record, change = catalogue.images.receive(found, require_shelf(common, remote_name).get, remote_name)
    tell_image(common, catalogue, found, record, change)
    return None


@command(
    "show",
    examples=[("hibali pipelines image show fsl_bet", "See which image it is, and whether it is here.")],
)
@click.argument("pipeline")
def image_show_command(common: Common, pipeline: str) -> int | None:
    """Show what is known of a pipeline's image.

    PIPELINE is NAME or NAME@VERSION. Without an image it ends with 3.
    """
    from hibali_cli.handlers.pipelines import image_fields
    from registry.catalogue import Catalogue

    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    record = catalogue.images.require(found)
    file = catalogue.images.local_file(found, record)
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


image_command = command_group(
    "image",
    commands=(
        image_add_command,
        image_drop_command,
        image_get_command,
        image_show_command,
    ),
    help_text="Keep the container images of pipelines, pinned by digest, and get them from remotes when wanted.",
)
