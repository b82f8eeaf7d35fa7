"""`hibali bundle show`."""

from __future__ import annotations

from pathlib import Path

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command("show", examples=[("hibali bundle show bet.zip", "See what is in a bundle before it is run.")])
@click.argument("file", metavar="FILE")
def command(common: Common, *, file: str) -> int | None:
    """Show what a bundle says of itself, without running anything.

    Its texts are checked against its manifest; inputs and image are read by `bundle run`.
    """
    from hibali_cli.bundle_record import show_bundle
    from runs.bundles.archive import Archive
    from runs.bundles.read import read_bundle

    with Archive(Path(file)) as archive:
        show_bundle(common, Path(file), read_bundle(archive))
    return None
