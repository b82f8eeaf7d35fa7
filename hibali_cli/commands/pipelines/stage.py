"""`hibali pipelines stage`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common

if TYPE_CHECKING:
    from hibali.config.model import Site
    from registry.pipeline import Pipeline
    from runs.containers.base import Container
    from runs.images import Pinned, Staged


@as_command(
    "stage",
    resumes=True,
    examples=[
        ("hibali pipelines stage conform@1.0 --site juwels", "Bring its image there, ready to start."),
        ("hibali pipelines stage conform --site juwels --image conform.tar", "Bring an image of your own."),
    ],
)
@click.argument("pipeline")
@click.option("--site", "site_name", required=True, metavar="SITE", help="Bring it there.")
@click.option("--image", default="", metavar="ARCHIVE", help="This archive, not the catalogue's.")
def command(common: Common, *, pipeline: str, site_name: str, image: str) -> int | None:
    """Bring a pipeline's image to a site and make of it what runs start there.

    The archive goes into the site's cache once, and is converted there once, whoever else asks at the same time; what is
    ready is not touched again. `run` does the same for what is not there yet.
    """
    from hibali_cli.catalogue import pinned_image
    from hibali_cli.run_site import run_site
    from registry.catalogue import Catalogue
    from runs.containers.base import load_container

    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    site = run_site(common, site_name)
    container = load_container(site.container)
    staged = _stage(common, found, site, container, image, pinned_image(catalogue, found))
    if common.json:
        record = {
            "pipeline": found.reference,
            "site": site.name,
            "container": container.name,
            "id": staged.id,
        }
        made = {"path": staged.path or None, "digest": staged.digest or None, "fresh": staged.fresh}
        common.output.record("staged-image", {**record, **made})
    else:
        done = "is ready" if staged.fresh else "was ready"
        where = f": {staged.path}" if staged.path else ""
        common.output.say(f"{found.reference}: {staged.id} {done} at {site.name}{where}")
    return None


def _stage(
    common: Common, pipeline: Pipeline, site: Site, container: Container, given: str, pinned: Pinned | None
) -> Staged:
    from pathlib import Path

    from hibali.errors import NotFoundError, UsageError
    from hibali_cli.progress import listening
    from hibali_cli.run_site import opener
    from runs.images import open_images, stage_archive, stage_pinned
    from runs.stage import Synchroniser

    if not container.isolates:
        raise UsageError("no-image", f"{container.name} runs without images", about=site.name)
    name = container.image_name(pipeline.container)
    if not given and pinned is None:
        raise NotFoundError(
            "no-image",
            "the catalogue has no image of this pipeline",
            about=pipeline.reference,
            hint=f"FILE is of docker save: hibali pipelines image add {pipeline.reference} --archive FILE",
        )
    with listening(common, f"stage {pipeline.reference} at {site.name}") as tell:
        far = opener(site, tell)()
        try:
            images = open_images(far, site, container, Synchroniser(), tell)
            if given:
                return stage_archive(pipeline, name, images, Path(given))
            assert pinned is not None
            return stage_pinned(name, images, pinned)
        finally:
            far.close()
