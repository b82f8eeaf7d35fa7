"""Store archives as images of pipelines, and stage them at sites."""

from __future__ import annotations

from pathlib import Path

from hibali.config.model import Site
from hibali.errors import NotFoundError, UsageError
from hibali_cli.handlers.pipelines import open_catalogue, print_image
from hibali_cli.handlers.run_sites import opener, run_site
from hibali_cli.options import Common
from hibali_cli.progress import listening
from registry.catalogue import Catalogue
from registry.pipeline import Pipeline
from runs.containers.base import Container, load_container
from runs.images import Pinned, Staged, open_images, stage_archive, stage_pinned
from runs.new_request import pinned_image
from runs.stage import Synchroniser


def stage_image(common: Common, *, pipeline: str, site_name: str, image: str) -> int | None:
    """Stage a pipeline's image at a site."""
    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    site = run_site(common, site_name)
    container = load_container(site.container.name)
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
        done = "is ready" if staged.fresh else "was ready already"
        location = f": {staged.path}" if staged.path else ""
        common.output.info(f"{found.reference}: {staged.id} {done} at {site.name}{location}")
    return None


def _stage(
    common: Common, pipeline: Pipeline, site: Site, container: Container, archive: str, pinned: Pinned | None
) -> Staged:
    if not container.isolates:
        raise UsageError(
            "no-image",
            f"the container runtime {container.name} has no images",
            subject=site.name,
            hint="Nothing needs to be staged: tools run as they are installed there.",
        )
    name = container.image_name(pipeline.container)
    if not archive and pinned is None:
        raise NotFoundError(
            "no-image",
            "the catalogue has no image of this pipeline",
            subject=pipeline.reference,
            hint=f"Add one from `docker save`: hibali pipelines image add {pipeline.reference} --archive FILE",
        )
    with listening(common, f"stage {pipeline.reference} at {site.name}") as on_event:
        host = opener(site, on_event)()
        try:
            images = open_images(host, site, container, Synchroniser(), on_event)
            if archive:
                return stage_archive(pipeline, name, images, Path(archive))
            assert pinned is not None
            return stage_pinned(name, images, pinned)
        finally:
            host.close()


def add_image(common: Common, pipeline: str, archive: str) -> int | None:
    """Store an archive as the image of a pipeline."""
    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    record, change = catalogue.images.add(found, Path(archive))
    print_image(common, catalogue, found, record, change)
    return None
