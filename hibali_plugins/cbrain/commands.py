"""The option of `hibali push` and `hibali sync` for the type of new files."""

from __future__ import annotations

import click

from hibali_cli.command import AddedOptions

# push and sync read it: a site of any kind may have types (`StoreKind.with_file_type`)
type_options = AddedOptions(
    (
        click.Option(
            ["--as-type"],
            metavar="TYPE",
            help="The type of new files at a CBRAIN portal, such as TextFile; by default guessed from their names.",
        ),
    ),
    after="no_save",
)
