"""`hibali init`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "init",
    examples=[
        ("hibali init", "A few questions, and a first file is sent."),
        ("hibali init --yes", "No questions: a folder of this machine, and a first file in it."),
        (
            "hibali init --yes --from ssh --only juwels --to juwels",
            "A host of ~/.ssh/config, and a first file there.",
        ),
    ],
)
@click.option(
    "--from", "source", metavar="ssh|rclone|FILE|URL", default="", help="Where sites are proposed from."
)
@click.option("--only", multiple=True, metavar="NAME", help="Take the proposal of this name; repeatable.")
@click.option("--user", metavar="NAME", help="Log in to the sites of a profile as NAME.")
@click.option(
    "--account", metavar="A", help="The account that jobs at the sites of a profile are charged to."
)
@click.option("--ssh-config", metavar="FILE", help="Read FILE, and go by it, instead of ~/.ssh/config.")
@click.option("--here", metavar="FOLDER", help="The folder of this machine that becomes a site; ~/hibali.")
@click.option("--to", metavar="SITE[:PATH]", help="Where the first file goes.")
@click.option("--no-push", is_flag=True, help="Send nothing.")
@click.option("--yes", is_flag=True, help="Ask nothing.")
def command(
    common: Common,
    *,
    source: str,
    only: tuple[str, ...],
    user: str | None,
    account: str | None,
    ssh_config: str | None,
    here: str | None,
    to: str | None,
    no_push: bool,
    yes: bool,
) -> int | None:
    """Begin: choose sites from what ssh and rclone know, look at them, and send a first file.

    Nobody is asked without a terminal. Sites that stand in config.toml stay as they are. Where one that is taken does not work,
    it is kept, what to do is said, and the command ends with 4 or 5.
    """
    from hibali_cli.beginning import Beginning, begin
    from hibali_cli.importing import Wanted

    wanted = Wanted(source, only, user, account, ssh_config)
    return begin(common, Beginning(wanted, here, to, push=not no_push, yes=yes))
