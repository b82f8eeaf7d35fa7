"""`hibali sites import`."""  # noqa: N999  # the module is named as the command

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common

_EXAMPLES = [
    ("hibali sites import", "See which sites ~/.ssh/config and rclone.conf know."),
    ("hibali sites import ssh --only juwels --yes", "Take one of them."),
    (
        "hibali sites import https://hpc.example.org/hibali.toml --user me",
        "See what a centre publishes, and take it after a question.",
    ),
]


@as_command("import", examples=_EXAMPLES)
@click.argument("source", metavar="[ssh|rclone|FILE|URL]", required=False)
@click.option("--from", "origin", metavar="ssh|rclone|FILE|URL", help="The same, as an option.")
@click.option("--only", multiple=True, metavar="NAME", help="Take only the site of this name; repeatable.")
@click.option("--user", metavar="NAME", help="Log in to the sites of a profile as NAME.")
@click.option(
    "--account", metavar="A", help="The account that jobs at the sites of a profile are charged to."
)
@click.option("--ssh-config", metavar="FILE", help="Read FILE, and go by it, instead of ~/.ssh/config.")
@click.option("--replace", is_flag=True, help="Put them in the place of other sites of their names.")
@click.option("--yes", is_flag=True, help="Take them without a question.")
def command(
    common: Common, source: str | None, *, origin: str | None, replace: bool, yes: bool, **options: str | None
) -> int | None:
    """Propose sites from ssh, rclone, or a profile that a centre publishes, and take them.

    All is shown as it would be written. On a terminal it is taken after a question, elsewhere only with --yes. No password
    and no key is copied. No host is asked; `hibali doctor SITE` does that.
    """
    from hibali_cli.import_dialogue import Asked, import_sites

    if source and origin:
        raise click.UsageError("The source is named twice.")
    asked = Asked(source or origin or "", replace=replace, yes=yes)
    return import_sites(common, asked, options)
