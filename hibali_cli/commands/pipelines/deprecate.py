"""`hibali pipelines deprecate`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "deprecate",
    examples=[
        (
            "hibali pipelines deprecate fsl_bet@1.0.0 --successor fsl_bet@1.1.0",
            "Say what is to be used instead.",
        ),
        ('hibali pipelines deprecate fsl_bet --because "wrong units"', "Say it of all versions, and why."),
        ("hibali pipelines deprecate fsl_bet@1.0.0 --undo", "Say it no more."),
    ],
)
@click.argument("pipeline")
@click.option("--successor", metavar="PIPELINE", help="What is to be used instead, as NAME@VERSION.")
@click.option("--because", metavar="TEXT", default="", help="Why.")
@click.option("--undo", is_flag=True, help="Take it back.")
def command(common: Common, pipeline: str, successor: str | None, because: str, *, undo: bool) -> int | None:
    """Say that a pipeline should not be used any more.

    It stays in the catalogue and can be run; whoever does is told. Without a version all versions are meant.
    """
    from hibali.errors import UsageError
    from hibali_cli.catalogue import open_catalogue
    from hibali_cli.pipeline_record import pipeline_record
    from registry.catalogue_folder import Deprecation

    if undo and (successor or because):
        raise UsageError("usage", "--undo takes neither --successor nor --because", about=pipeline)
    catalogue = open_catalogue(common)
    instead = catalogue.find(successor).reference if successor else ""
    said = None if undo else Deprecation(instead, because)
    for each in catalogue.deprecate(pipeline, said):
        if common.json:
            common.output.record("pipeline", pipeline_record(each, catalogue.deprecation(each)))
        else:
            common.output.line(f"{each.reference}: {said or 'not deprecated'}")
    return None
