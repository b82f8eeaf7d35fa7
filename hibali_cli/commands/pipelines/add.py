"""`hibali pipelines add`."""

from __future__ import annotations

from pathlib import Path

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "add",
    examples=[
        ("hibali pipelines add bet.json", "Check a descriptor and keep it under its own name and version."),
        ("hibali pipelines add bet.json --name brain-extraction", "Keep it under another name."),
    ],
)
@click.argument("file")
@click.option("--name", metavar="NAME", help="Name in the catalogue, instead of the descriptor's own.")
def command(common: Common, file: str, name: str | None) -> int | None:
    """Check a Boutiques descriptor and keep it.

    The same content again changes nothing; other content under the same name and version is refused (8).
    """
    from hibali_cli.pipeline_record import pipeline_record
    from registry.catalogue import Catalogue

    pipeline = Catalogue().add(Path(file), name)
    if common.json:
        common.output.record("pipeline", pipeline_record(pipeline))
    else:
        common.output.line(pipeline.reference)
        common.output.say(f"sha256 {pipeline.digest}")
    return None
