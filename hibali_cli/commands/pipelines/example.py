"""`hibali pipelines example`."""

from __future__ import annotations

import json

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "example",
    examples=[
        (
            "hibali pipelines example fsl_bet > bet-invocation.json",
            "Start an invocation with what is required.",
        ),
        ("hibali pipelines example fsl_bet --complete", "See every answer that can be given at once."),
    ],
)
@click.argument("pipeline")
@click.option("--complete", is_flag=True, help="Answer everything that can be answered together.")
def command(common: Common, pipeline: str, *, complete: bool) -> int | None:
    """Write an invocation to start from.

    It is valid for PIPELINE, a NAME[@VERSION], but its values are made up.
    """
    from registry.catalogue import Catalogue
    from registry.example import make_example

    found = Catalogue().find(pipeline)
    invocation = make_example(found, complete=complete)
    if common.json:
        common.output.record(
            "invocation", {"name": found.name, "version": found.version, "values": invocation}
        )
    else:
        common.output.text(json.dumps(invocation, indent=4) + "\n")
    return None
