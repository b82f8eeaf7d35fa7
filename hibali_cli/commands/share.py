"""`hibali share`: give others access to files."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command, command_group
from hibali_cli.options import Common, duration_of


@command(
    "link",
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
def link_command(common: Common, places: tuple[str, ...], *, seconds: float) -> int | None:
    """Print a link to a file in a bucket, for people without an account.

    Anyone with the link can read the file until it ends, and nothing else. hibali reads the first byte with nothing but the link; if
    that fails, it says so and the exit code is 11. A link cannot be withdrawn: only new credentials of the site, or another name of the file, end it earlier.
    """
    from hibali_cli.handlers.share import print_links

    return print_links(common, places, round(seconds))


@command(
    "list",
    examples=[
        ("hibali share list", "Show which links are valid, and until when."),
        ("hibali share list --all", "Also show those that have ended."),
    ],
)
@click.option("--all", "ended", is_flag=True, help="Also show links that have ended.")
def list_command(common: Common, *, ended: bool) -> int | None:
    """Show the links that were made on this machine, and when they end.

    The links themselves are not stored.
    """
    from hibali_cli.handlers.share import list_links

    return list_links(common, ended=ended)


share_command = command_group(
    "share",
    commands=[link_command, list_command],
    help_text="Share files of buckets by links.",
    section=Section.FILES,
)
