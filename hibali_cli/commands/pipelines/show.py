"""`hibali pipelines show`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "show", examples=[("hibali pipelines show fsl_bet", "See what the latest fsl_bet asks for and leaves.")]
)
@click.argument("pipeline")
def command(common: Common, pipeline: str) -> int | None:
    """Show what a pipeline asks for, runs and leaves, and where you have run it.

    PIPELINE is NAME or NAME@VERSION; a NAME alone is the version added last. No site is asked: runs are shown as they were last heard of.
    """
    from hibali_cli.image_record import image_fields, image_words
    from hibali_cli.pipeline_record import full_record, show_pipeline, show_sites
    from registry.catalogue import Catalogue
    from runs.store import by_site, runs_of

    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    trusted, said = catalogue.is_trusted(found.digest), catalogue.deprecation(found)
    sites = by_site(runs_of(found.digest))
    image = catalogue.image(found)
    here = image is not None and catalogue.images.here(found, image) is not None
    if common.json:
        fields = image_fields(image, here=here) if image else None
        runs = [each.to_record() for each in sites]
        common.output.record("pipeline", {**full_record(found, said, fields, trusted=trusted), "runs": runs})
    else:
        words = image_words(image, here=here) if image else ""
        show_pipeline(common.output, found, said, words, trusted=trusted)
        show_sites(common.output, sites)
    return None
