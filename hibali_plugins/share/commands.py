"""`hibali share`: give others access to files."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from hibali.amounts import read_moment
from hibali_cli.command import Section, command, command_group
from hibali_cli.options import duration_of


def _read_end(context: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    """Read a time, or a duration from now; click calls it."""
    if text is None:
        return None
    try:
        moment = read_moment(text, ago=False)
    except (ValueError, OverflowError):
        message = f"{text!r} is neither a duration such as 30d or 12h nor a time such as 2027-01-31 or 2027-01-31T12:00:00Z"
        raise click.BadParameter(message, context, option) from None
    if moment <= datetime.now(UTC):
        raise click.BadParameter(f"{text!r} is over", context, option)
    return moment.replace(microsecond=0)


_with_option = click.option(
    "--with",
    "who",
    metavar="WHO",
    help="NAME, user:NAME or group:NAME at a filesystem; an ARN or `everyone` at a bucket; PROJECT:USER at Swift; a UUID at a guest collection; "
    "project:NAME at a CBRAIN portal.",
)
_as_option = click.option(
    "--as",
    "other",
    metavar="SITE[:PATH]",
    help="The same place at a site that has the login of the other person, to try as this person what was changed.",
)


@command(
    "add",
    calls="hibali_plugins.share.sharing:add",
    examples=[
        ("hibali share add juwels:@data/brain7 --with anna --dry-run", "Show what Anna could read then."),
        ("hibali share add juwels:@data/brain7 --with group:bigbrain", "Let a group read a folder."),
        (
            "hibali share add archive:scans --with arn:aws:iam::123456789012:user/anna --until 30d --as archive-anna",
            "Let Anna read a prefix for a month, and prove it with her keys.",
        ),
    ],
)
@click.argument("place", metavar="PLACE")
@_with_option
@click.option("--read", "permission", flag_value="read", default="read", help="To read (the default).")
@click.option("--write", "permission", flag_value="write", help="To read, write and delete.")
@click.option(
    "--until",
    callback=_read_end,
    metavar="DURATION|TIME",
    help="When it ends; see `share rm --ended`. Without it, the share has no end.",
)
@_as_option
@click.option("--dry-run", is_flag=True, help="Show what the share would concern, and change nothing.")
def add_command() -> None:
    """Let others read or write a file, or a folder with all that it has now and later.

    On a filesystem this sets POSIX access control lists, also as defaults for new files; in a bucket it adds statements to the
    bucket's policy, at a guest collection of Globus an access rule, and at a CBRAIN portal it changes the project. Nobody else gains anything, and what others granted stays. The plan is shown first: files, bytes, and
    folders above that the other person cannot enter.

    Servers accept names that mean nobody. With --as, hibali reads a file as the other person: if it cannot, the share is
    not proven and the exit code is 11. Without --as nobody tries it, and hibali says so.
    """


@command(
    "rm",
    calls="hibali_plugins.share.sharing:remove",
    examples=[
        ("hibali share rm juwels:@data/brain7 --with anna", "Take away what Anna was given."),
        ("hibali share rm --ended", "Remove all shares whose time is over, for a schedule."),
    ],
)
@click.argument("place", metavar="[PLACE]", required=False)
@_with_option
@_as_option
@click.option("--ended", is_flag=True, help="Remove all shares of this machine whose time is over.")
def rm_command() -> None:
    r"""Take away what `share add` gave.

    What others granted stays. With --as, hibali tries to read a file as the other person: if that still works, for
    example because the group may read it, the exit code is 11.

    \b
    Shares with --until end by a schedule:
        hibali schedule add shares --every 1h -- share rm --ended
    """


@command(
    "link",
    calls="hibali_plugins.share.sharing:print_links",
    examples=[
        ("hibali share link archive:scans/brain.nii --for 7d", "Print a link that is valid for a week."),
        ("hibali share link archive:a.csv archive:b.csv --json", "Print two, for a script."),
    ],
)
@click.argument("places", metavar="SITE:PATH...", nargs=-1, required=True)
@click.option(
    "--for",
    "seconds",
    default="7d",
    show_default=True,
    callback=duration_of,
    metavar="DURATION",
    help="How long the link is valid, at most 7 days.",
)
def link_command() -> None:
    """Print a link to a file in a bucket, for people without an account.

    Anyone with the link can read the file until it ends, and nothing else. hibali reads the first byte with nothing but the link; if
    that fails, it says so and the exit code is 11. A link cannot be withdrawn: only new credentials of the site, or another name of the file, end it earlier.
    """


@command(
    "list",
    calls="hibali_plugins.share.sharing:list_shares",
    examples=[
        ("hibali share list", "Show what this machine shares, with whom and until when."),
        ("hibali share list juwels:@data/brain7", "Ask the site who can read a folder."),
        ("hibali share list --all", "Also show what has ended."),
    ],
)
@click.argument("place", metavar="[PLACE]", required=False)
@click.option("--all", "ended", is_flag=True, help="Also show what has ended or was removed.")
def list_command() -> None:
    """Show who can read your files, and until when: with PLACE what its site says, else what this machine recorded.

    Links are not stored, only their places and ends.
    """


share_command = command_group(
    "share",
    commands=[add_command, rm_command, link_command, list_command],
    help_text="Give other people access to files, prove it, and end it.",
    section=Section.FILES,
)
