"""Make cells of tables that are shorter on a terminal: ids and times."""

from __future__ import annotations

from datetime import datetime

from hibali.amounts import format_duration, format_moment
from hibali.ledger import seconds_of, short_identifier
from hibali_cli.output import Short


def id_cell(identifier: str) -> Short:
    """Return the cell of an id: its last part on a terminal, which every command takes."""
    return Short(identifier, short_identifier(identifier))


def time_cell(recorded: str, whole: str = "") -> Short:
    """Return the cell of a time in RFC 3339; `whole` is its text in a pipe, if it is another."""
    whole = whole or recorded
    seconds = seconds_of(recorded)
    if seconds is None:
        return Short(whole, whole)
    return Short(whole, format_moment(datetime.fromtimestamp(seconds).astimezone(), local_now()))


def age_text(recorded: str) -> str | None:
    """Return the time since then in its largest unit: `3 min`, `2 h`, `5 d`."""
    seconds = seconds_of(recorded)
    if seconds is None:
        return None
    return " ".join(format_duration(max(0.0, local_now().timestamp() - seconds)).split()[:2])


def local_now() -> datetime:
    """Return the time in the local zone."""
    return datetime.now().astimezone()
