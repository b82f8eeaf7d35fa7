"""`hibali sites cache`: list and evict what a site caches for later runs."""

from __future__ import annotations

import click

from hibali_cli.command import command, command_group


@command(
    "evict",
    calls="hibali_plugins.eviction.evicting:evict_cache",
    resumes=True,
    examples=[
        (
            "hibali sites cache evict juwels --keep 500G -n",
            "List the entries to evict until at most 500 GiB are used.",
        ),
        ("hibali sites cache evict juwels --keep 30d", "Evict entries that were not used for 30 days."),
        ("hibali sites cache evict juwels", "Evict all entries that no run uses."),
    ],
)
@click.argument("name", metavar="SITE")
@click.option(
    "--keep",
    metavar="SIZE|DURATION",
    help="Keep up to this size (500M, 2G), or entries used within this time (12h, 30d: lower case).",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only list entries that would be evicted.")
def cache_evict_command() -> None:
    """Evict entries from a site's cache, the least recently used first; without --keep all of them.

    Entries that a run uses are kept. Evicted entries are staged again when a run needs them. If the command is killed, run it again
    to resume.
    """


@command(
    "list",
    calls="hibali_plugins.eviction.evicting:list_cache",
    examples=[("hibali sites cache list juwels", "List the cache of juwels, the least recently used first.")],
)
@click.argument("name", metavar="SITE")
def cache_list_command() -> None:
    """List the entries of a site's cache: sizes, times of last use, and the runs that use them.

    Entries that a run uses are never evicted, from before they are staged until the run has ended.
    """


cache_command = command_group(
    "cache",
    section="Storage",
    commands=(
        cache_evict_command,
        cache_list_command,
    ),
    help_text="List and evict the inputs and images that a site caches for later runs.",
)
