"""`hibali pipelines remove`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "remove", examples=[("hibali pipelines remove fsl_bet@1.0.0", "Forget one version of a pipeline.")]
)
@click.argument("pipeline")
def command(common: Common, pipeline: str) -> int | None:
    """Remove a version from the catalogue.

    PIPELINE is NAME@VERSION. Runs that were made with it are kept.
    """
    from hibali_cli.catalogue import open_catalogue
    from registry.pipeline import split_reference

    open_catalogue(common).remove(pipeline)
    name, version = split_reference(pipeline)
    if common.json:
        common.output.record("pipeline-change", {"name": name, "version": version, "change": "removed"})
    else:
        common.output.say(f"{name}@{version} removed")
    return None
