"""Define the options that select files, and those for saving in a dataset."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hibali.amounts import read_duration, read_size
from hibali.system_errors import unreadable

if TYPE_CHECKING:
    from transfers.request import Saving


_SECOND = 1_000_000_000


def take_size(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """An option's bytes; click calls it."""
    try:
        return None if text is None else read_size(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem), context, option) from None


def take_time(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Nanoseconds since the epoch of a time, or of as long ago as a duration says; click calls it."""
    if text is None:
        return None
    try:
        if text[:4].isdigit() and text[4:5] == "-":
            given = datetime.fromisoformat(text)
            moment = given.timestamp()  # without a zone it is the clock of this machine, as `ls` shows it
        else:
            moment = datetime.now(UTC).timestamp() - read_duration(text)
    except (ValueError, OverflowError):
        words = f"{text!r} is neither a duration such as 2d or 12h nor a time such as 2026-01-31 or 2026-01-31T12:00:00Z"
        raise click.BadParameter(words, context, option) from None
    return int(moment * _SECOND)


SELECTION: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--files-from",
        metavar="FILE|-",
        help="Take only the names in FILE, one a line, relative to the source; a folder's takes all below.",
    ),
    click.option(
        "-0", "--from0", is_flag=True, help="Names in --files-from end with NUL, as `find -print0` writes."
    ),
    click.option(
        "--newer",
        callback=take_time,
        metavar="DURATION|TIME",
        help="Take only files modified within DURATION (2d, 12h) or since TIME (2026-01-31).",
    ),
    click.option(
        "--min-size",
        callback=take_size,
        metavar="SIZE",
        help="Take only files of SIZE (10K, 5M, 1GiB) or more.",
    ),
    click.option(
        "--max-size",
        callback=take_size,
        metavar="SIZE",
        help="Take only files of SIZE (10K, 5M, 1GiB) or less.",
    ),
)


def take_selection(options: dict[str, Any]) -> dict[str, Any]:
    """Take these options out of a command's, as the fields of Rules."""
    listed, zero = options.pop("files_from"), options.pop("from0")
    taken = {name: options.pop(name) for name in ("include", "exclude", "min_size", "max_size")}
    taken["newer_ns"] = options.pop("newer")
    if listed is not None:
        taken["files_from"] = _names(listed, zero=zero)
    elif zero:
        raise click.UsageError("-0/--from0 says how --files-from is written, and that is missing.")
    return taken


def _names(listed: str, *, zero: bool) -> frozenset[bytes]:
    from hibali.errors import NotFoundError
    from transfers.rules import read_names

    try:
        content = sys.stdin.buffer.read() if listed == "-" else Path(listed).read_bytes()
    except FileNotFoundError:
        raise NotFoundError("no-such-file", "there is no such list of names", subject=listed) from None
    except OSError as problem:
        raise unreadable(problem, listed) from None
    return read_names(content, listed, separator=b"\0" if zero else b"\n")


SAVING: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--push-to",
        multiple=True,
        metavar="SIBLING",
        help="After what came into a dataset is saved, push that to SIBLING (`datalad push`); may be repeated.",
    ),
    click.option(
        "--no-save",
        is_flag=True,
        help="Leave what comes into a dataset uncommitted.",
    ),
)


def saving_of(push_to: tuple[str, ...], *, no_save: bool) -> Saving:
    """What becomes of what comes into a dataset. Raises `UsageError`."""
    from hibali.errors import UsageError
    from transfers.request import Saving

    if push_to and no_save:
        raise UsageError("usage", "what is not saved cannot be pushed on", subject="--push-to")
    return Saving(not no_save, push_to)
