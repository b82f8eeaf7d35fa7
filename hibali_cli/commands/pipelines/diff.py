"""`hibali pipelines diff`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "diff",
    examples=[
        ("hibali pipelines diff fsl_bet@1.0.0 fsl_bet@1.1.0", "See what a new version asks otherwise.")
    ],
)
@click.argument("old")
@click.argument("new")
@click.option("--detailed-exit-code", is_flag=True, help="End with 10 when there are differences.")
def command(common: Common, old: str, new: str, *, detailed_exit_code: bool) -> int | None:
    """Show what changed from one version to another.

    OLD and NEW are NAME@VERSION. A change that may make an invocation wrong is marked with an exclamation mark.
    """
    from hibali_cli.pipeline_changes import show_changes
    from registry.catalogue import Catalogue
    from registry.pipeline import find_changes

    catalogue = Catalogue()
    changes = find_changes(catalogue.find(old), catalogue.find(new))
    code = 10 if changes and detailed_exit_code else 0
    show_changes(common.output, changes, code)
    return code
