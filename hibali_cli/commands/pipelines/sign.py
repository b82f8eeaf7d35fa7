"""`hibali pipelines sign`."""

from __future__ import annotations

from pathlib import Path

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "sign",
    examples=[
        (
            "hibali pipelines sign fsl_bet@1.0.0 --key ~/.ssh/id_ed25519",
            "Vouch for a version with your ssh key.",
        ),
    ],
)
@click.argument("pipeline")
@click.option(
    "--key",
    metavar="FILE",
    required=True,
    help="An ssh key; a public one where an agent holds the other half.",
)
def command(common: Common, pipeline: str, key: str) -> int | None:
    """Vouch for a version with an ssh key.

    Name, version, digest and the digest of its image are signed: sign again when an image was added. The signature goes along when it is published.
    """
    from hibali_cli.catalogue import open_catalogue
    from hibali_cli.exchanging import policy_of
    from hibali_cli.pipeline_record import pipeline_record
    from registry.signature import sign, signed_text

    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    image = catalogue.images.record(found.name, found.version)
    covered = image.digest if image else ""
    text = signed_text(found, covered)
    file, signature = sign(text, Path(key).expanduser(), policy_of(common).scratch, covered)
    catalogue.sign(found, file, signature)
    if common.json:
        common.output.record("pipeline", pipeline_record(found, catalogue.deprecation(found)))
    else:
        common.output.line(f"{found.reference}: signed")
    return None
