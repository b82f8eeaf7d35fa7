"""`hibali pipelines trust`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "trust",
    examples=[("hibali pipelines trust nib-conform@5.3.2", "Let this content run without a container.")],
)
@click.argument("pipeline")
def command(common: Common, pipeline: str) -> int | None:
    """Let a pipeline run without a container, and set variables such as PATH.

    PIPELINE, a NAME@VERSION, then runs as you, with all your rights. The consent is for this very content, by its digest.
    """
    from hibali_cli.pipeline_record import pipeline_record
    from registry.catalogue import Catalogue

    found = Catalogue().trust(pipeline)
    if common.json:
        common.output.record("pipeline", {**pipeline_record(found), "trusted": True})
    else:
        common.output.say(f"{found.reference} may run without a container (sha256 {found.digest})")
    return None
