"""Define the options of transfers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hibali.amounts import read_moment, read_size
from hibali_cli.options import WRITTEN, duration_of

# modules of transfers are imported where they are used, for start-up time


_SECOND = 1_000_000_000


def read_size_option(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Read the size of an option; click calls it."""
    try:
        return None if text is None else read_size(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem), context, option) from None


def read_age_option(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Read a time, or a duration before now, in nanoseconds since the epoch; click calls it."""
    if text is None:
        return None
    try:
        moment = read_moment(text, ago=True).timestamp()
    except (ValueError, OverflowError):
        message = f"{text!r} is neither a duration such as 2d or 12h nor a time such as 2026-01-31 or 2026-01-31T12:00:00Z"
        raise click.BadParameter(message, context, option) from None
    return int(moment * _SECOND)


SELECTION: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--files-from",
        metavar="FILE|-",
        help="Transfer only the names in FILE, one per line, relative to the source; a folder includes its contents.",
    ),
    click.option(
        "-0",
        "--from0",
        is_flag=True,
        help="Names in --files-from end with NUL, as written by `find -print0`.",
    ),
    click.option(
        "--newer",
        callback=read_age_option,
        metavar="DURATION|TIME",
        help="Select only files modified within DURATION (2d, 12h) or since TIME (2026-01-31).",
    ),
    click.option(
        "--min-size",
        callback=read_size_option,
        metavar="SIZE",
        help="Select only files of at least SIZE (10K, 5M, 1GiB).",
    ),
    click.option(
        "--max-size",
        callback=read_size_option,
        metavar="SIZE",
        help="Select only files of at most SIZE (10K, 5M, 1GiB).",
    ),
)


SAVING: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--push-to",
        multiple=True,
        metavar="SIBLING",
        help="After saving files in a dataset, push it to SIBLING (`datalad push`); repeatable.",
    ),
    click.option(
        "--no-save",
        is_flag=True,
        help="Do not commit files that are transferred into a dataset.",
    ),
)


_PROOFS = ("digest", "recorded", "claimed", "size", "none")

FILTERS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        help="Only names that match the pattern (as in .gitignore); repeatable.",
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Leave out names that match the pattern (as in .gitignore); repeatable.",
    ),
)
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--delete",
        is_flag=True,
        help="Delete extraneous files at the target, at the end, within --max-delete.",
    ),
    click.option(
        "--max-delete",
        metavar="N|N%",
        help="Refuse to delete more files than this (default: 50 or 10 %, the larger one).",
    ),
    click.option(
        "--allow-empty-source",
        is_flag=True,
        help="Allow --delete to delete all files of the target if the source is empty.",
    ),
    click.option(
        "--checksum", is_flag=True, help="Compare by sha256 at both ends instead of by size and time."
    ),
    click.option(
        "--recorded",
        is_flag=True,
        help="With --checksum, use the recorded digests of unchanged files, and record all others.",
    ),
    *FILTERS,
    *SELECTION,
    click.option(
        "--links",
        type=click.Choice(["keep", "skip"]),
        default="keep",
        show_default=True,
        help="Transfer symlinks as symlinks, or skip them.",
    ),
    click.option(
        "--modes",
        type=click.Choice(["execute", "keep"]),
        default="execute",
        show_default=True,
        help="The permission bits to transfer: the execute bit, or all nine, also of folders.",
    ),
    click.option(
        "-H",
        "--hard-links",
        is_flag=True,
        help="Preserve hard links; the content of a file with several names is sent once.",
    ),
    click.option(
        "--keep-empty-folders",
        is_flag=True,
        help="In a bucket, store each empty folder as an empty object NAME/, as rclone and others do.",
    ),
    click.option(
        "--xattrs", is_flag=True, help="Also transfer extended attributes of the user namespace (user.*)."
    ),
    click.option(
        "--specials",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="Report devices, FIFOs and sockets as failures, or skip them.",
    ),
    click.option(
        "--recall",
        is_flag=True,
        help="Also read files that are on tape; without it they are reported as failures.",
    ),
    click.option(
        "--require-proof",
        type=click.Choice(_PROOFS),
        help="Exit 6 when a transferred file has a weaker verification than this.",
    ),
)


_KEEPING: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--backup-dir",
        type=WRITTEN,
        metavar="LOCATION",
        help="Move files that are replaced or deleted to LOCATION, a folder at the target's site.",
    ),
)
_PACE: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--bwlimit",
        metavar="RATE",
        callback=read_size_option,
        help="Limit the bytes per second (500K, 20M); the limits of the sites apply, too.",
    ),
)


_WAYS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--via",
        type=click.Choice(["auto", "globus", "stream"]),
        default="auto",
        show_default=True,
        help="Transfer with Globus (if both endpoints have a collection), or through this machine.",
    ),
    click.option(
        "--give-up-after",
        metavar="DURATION",
        callback=duration_of,
        help="Cancel a Globus task that has made no progress for DURATION because of an error.",
    ),
    click.option(
        "--cancel-on-interrupt",
        is_flag=True,
        help="Cancel the Globus task on Ctrl-C; without it the task continues.",
    ),
)
_DRY: tuple[Callable[[Any], Any], ...] = (
    click.option("-n", "--dry-run", is_flag=True, help="Print the plan and change nothing."),
    click.option(
        "--detailed-exit-code", is_flag=True, help="With --dry-run, exit 10 when there are changes."
    ),
)


def add_planning_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `plan` to a command."""
    return _add(_OPTIONS, function)


def add_moving_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of push, pull and sync to a command."""
    return _add(_OPTIONS[:3] + _KEEPING + _DRY + _PACE + _WAYS + _OPTIONS[3:] + SAVING, function)


def add_copying_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `cp` to a command: those of sync without --delete and --via."""
    return _add(_KEEPING + _DRY + _PACE + _OPTIONS[3:], function)


def add_choosing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select files to a command."""
    return _add((*FILTERS, *SELECTION), function)


def add_applying_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `apply`, which do not change a plan, to a command."""
    return _add(_KEEPING + _DRY + _PACE + SAVING, function)


def _add(options: tuple[Callable[[Any], Any], ...], function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        function = option(function)
    return function
