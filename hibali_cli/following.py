"""What `push --follow` adds: its options, and how a call ends that a signal is meant to end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hibali.errors import Exit, UsageError
from hibali_cli.interruption import OutOfTime, Terminated
from hibali_cli.moving import request_of, tell_receipt
from hibali_cli.options import Common, duration_of

if TYPE_CHECKING:
    from transfers.follow.watcher import Following

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--follow",
        is_flag=True,
        help="Go on while files are still written, and send each one once it is finished.",
    ),
    click.option(
        "--quiet-for",
        metavar="DURATION",
        callback=duration_of,
        help="With --follow, a file is finished when nobody wrote to it for so long; 30s unless said.",
    ),
    click.option(
        "--done-marker",
        metavar="NAME",
        help="With --follow, a file is finished when this is there: '*.done' beside it, or a name in its folder or above.",
    ),
    click.option(
        "--append",
        multiple=True,
        metavar="PATTERN",
        help="With --follow, what matches only grows: send its tails as they come; may be repeated.",
    ),
    click.option(
        "--until",
        metavar="FILE",
        help="With --follow, end when this file of this machine is there and all else is sent.",
    ),
)
_NAMES = ("quiet_for", "done_marker", "append", "until")


def add_following_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of following."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def take_following(options: dict[str, Any]) -> Following | None:
    """Take these options out of a command's; None without --follow. Raises `UsageError`."""
    asked = options.pop("follow")
    values = {name: options.pop(name) for name in _NAMES}
    if not asked:
        for name, value in values.items():
            if value not in (None, ()):
                raise _only_with(f"--{name.replace('_', '-')} is for --follow")
        return None
    if options["dry_run"]:
        raise _only_with("--follow cannot be a dry run: leave it out to see what would be sent now")
    if options["pack"]:
        raise _only_with("--follow cannot pack: push --pack what is finished")
    from transfers.follow.watcher import QUIET_SECONDS, Following, read_marker

    marker, until, quiet = values["done_marker"], values["until"], values["quiet_for"]
    return Following(
        QUIET_SECONDS if quiet is None else quiet,
        None if marker is None else read_marker(os.fsencode(marker)),
        None if until is None else Path(until),
        values["append"],
    )


def follow(common: Common, source: str, target: str, following: Following, options: dict[str, Any]) -> int:
    """Follow the source, and tell the receipt however that ended; returns the exit code."""
    from hibali_cli.progress import listening
    from transfers.follow.operation import follow as follow_source

    del options["dry_run"], options["detailed_exit_code"]
    request = request_of(common, "push", source, target, options)
    with listening(common, f"push {source} {target}") as tell:
        receipt, interruption = follow_source(request, following, tell)
    if interruption is not None:
        receipt.exit = _exit_of(interruption)
    tell_receipt(common, receipt)
    return int(receipt.exit)


def _exit_of(interruption: KeyboardInterrupt) -> Exit:
    if isinstance(interruption, OutOfTime):
        return Exit.TRY_LATER
    return Exit.TERMINATED if isinstance(interruption, Terminated) else Exit.INTERRUPTED


def _only_with(message: str) -> UsageError:
    return UsageError("usage", message, hint="See: hibali push --help")
