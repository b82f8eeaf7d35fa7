"""`hibali pipelines fetch`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "fetch",
    resumes=True,
    examples=[
        ("hibali pipelines fetch --from lab", "Take all that others left there."),
        ("hibali pipelines fetch fsl_bet --from lab", "Take all versions of one."),
    ],
)
@click.argument("pipelines", nargs=-1)
@click.option("--from", "remote_name", metavar="REMOTE", required=True, help="The remote to take them from.")
@click.option("--accept-rewritten", is_flag=True, help="Go on where the remote's history was rewritten.")
def command(
    common: Common, pipelines: tuple[str, ...], remote_name: str, *, accept_rewritten: bool
) -> int | None:
    """Take pipelines that other sites left at a remote.

    Everything is checked before anything is kept: a descriptor that is none, other content under a version that is known here, or
    a signature that config.toml asks for and that is missing ends with 8 or 2, and the catalogue stays as it was. Of images only what is
    known of them comes; `pipelines image get` brings their content.
    """
    from hibali_cli.catalogue import open_catalogue
    from hibali_cli.exchanging import open_remote, policy_of, show_exchanged
    from registry.exchange import fetch

    catalogue = open_catalogue(common)
    remote, seen = open_remote(common, remote_name)
    policy = policy_of(common)
    done = fetch(catalogue, remote, remote_name, seen, pipelines, policy, accept_rewritten=accept_rewritten)
    show_exchanged(common, remote_name, done)
    return None
