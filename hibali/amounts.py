"""Read and format durations, sizes, times and command lines as people write them."""

from __future__ import annotations

import math
import re
import shlex
from datetime import UTC, datetime, timedelta


def format_size(size: int) -> str:
    """Format a size in bytes with about three digits: `840 B`, `1.2 GB`, in powers of 1000."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.5 or unit == "PB":
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def format_duration(seconds: float) -> str:
    """Format a time in its two largest units: `21 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(1, round(seconds))
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def format_moment(moment: datetime, now: datetime) -> str:
    """Format a local time: `18:39` of today, `26 Nov` of this year, else `26 Nov 2025`; one to come also has its clock time."""
    if moment.date() == now.date():
        return f"{moment:%H:%M}"
    day = f"{moment.day} {moment:%b}" + (f" {moment.year}" if moment.year != now.year else "")
    return f"{day} {moment:%H:%M}" if moment > now else day


def duration_text(seconds: float) -> str:
    """Format a duration as `read_duration` reads it, in its largest whole unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?[dhms])+|[0-9]+(?:\.[0-9]+)?")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([dhms])")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_JOB_TIME = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,6}):([0-5]?[0-9]):([0-5]?[0-9])")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]?)(iB|B)?", re.IGNORECASE)


MOST_COUNT = 10**9
_LONGEST_SECONDS = 36525 * 86400.0  # dates, timers and the waits of the system can hold it
_LARGEST_SIZE = 2**63 - 1  # of a file, and of numbers in SQLite


def check_duration(seconds: float) -> float:
    """Return a duration that every clock and timer can hold; raises ValueError with a message for users."""
    if not seconds <= _LONGEST_SECONDS:  # nor NaN
        raise ValueError("the duration is longer than 100 years")
    return seconds


def check_size(size: float) -> int:
    """Return a size in bytes that files can have; raises ValueError with a message for users."""
    if not size <= _LARGEST_SIZE:
        raise ValueError("the size is larger than 8 EiB")
    return int(size)


def check_count(count: int, least: int = 0, most: int = MOST_COUNT) -> int:
    """Return a number within limits; raises ValueError with a message for users."""
    if not least <= count <= most:
        raise ValueError(
            f"{count if abs(count) <= most * 1000 else 'the number'} must be from {least} to {most}"
        )
    return count


def read_duration(text: str | float) -> float:
    """Parse a duration to seconds: `90`, `60s`, `10m`, `1h30m` or `2d`; raises ValueError with a message for users."""
    if not isinstance(text, str):
        return check_duration(text)
    written = text.strip().lower()
    if not _DURATION.fullmatch(written):
        raise ValueError(f"{text!r} is not a duration such as 60s, 10m, 1h30m or 2d")
    parts = _PART.findall(written)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else float(written)
    return check_duration(seconds)


def read_moment(text: str, *, ago: bool) -> datetime:
    """Parse a time, `2026-01-31` or RFC 3339, or a duration from now, or before now if `ago`.

    Without a time zone it is local time, as `ls` shows it. Raises ValueError, or OverflowError.
    """
    if text[:4].isdigit() and text[4:5] == "-":
        return datetime.fromisoformat(text).astimezone(UTC)
    distance = timedelta(seconds=read_duration(text))
    return datetime.now(UTC) - distance if ago else datetime.now(UTC) + distance


def read_moment_ns(value: str | datetime | timedelta) -> int:
    """Return a time, or one so long ago, in nanoseconds since the epoch; raises ValueError with a message for users."""
    if isinstance(value, timedelta):
        check_duration(abs(value.total_seconds()))
        value = datetime.now(UTC) - value
    try:
        moment = read_moment(value, ago=True) if isinstance(value, str) else value
        return int(moment.timestamp() * 1_000_000_000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{value!r} is neither a duration such as 2d or 12h nor a time such as 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None


def read_job_time(text: str) -> int:
    """Parse a job's time limit to seconds: `[D-]HH:MM:SS`, or of a duration with its unit (`90m`, `2d`); raises ValueError.

    `10:30` and a plain number are refused: schedulers read them as hours, minutes or seconds.
    """
    found = _JOB_TIME.fullmatch(text)
    if found is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    elif _PART.match(text.lower()):
        total = math.ceil(read_duration(text))
    else:
        raise ValueError(f"{text!r} is not a time limit such as 01:00:00, 2-00:00:00, 90m or 12h")
    if total <= 0:
        raise ValueError(f"{text!r} is not a positive time")
    check_duration(total)
    return total


def read_size(text: str | int) -> int:
    """Parse a size to bytes: `500M`, `1.5G` or `4096`; raises ValueError.

    Units are those of rsync: K, M, G and KiB, MiB, GiB are powers of 1024; KB, MB, GB of 1000.
    """
    if not isinstance(text, str):
        return check_size(text)
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a size such as 4096, 500M or 2GiB")
    number, prefix, suffix = found.groups()
    step = 1000 if prefix and (suffix or "").upper() == "B" else 1024
    return check_size(float(number) * step ** " KMGTP".index(prefix.upper() or " "))


NONE = "none"  # a resource that is not requested although the author or the site suggests it
_MIB = 1024**2


def read_memory(amount: str | int) -> int:
    """Return the memory of a job in MiB, rounded up, 0 for `none`; raises ValueError for less than 1 MiB."""
    if amount == NONE:
        return 0
    size = read_size(amount)
    if size < _MIB:
        digits = re.match(r"[0-9.]+", str(amount))
        meant = (
            f"{digits[0]}M was probably meant" if digits and float(digits[0]) else "`none` requests no memory"
        )
        raise ValueError(f"{amount} is less than 1 MiB: {meant}")
    return -(-size // _MIB)


def split_command(text: str) -> tuple[str, ...]:
    """Split a command line into arguments as a shell does, without a shell; raises ValueError."""
    try:
        argv = tuple(shlex.split(text))
    except ValueError as problem:
        raise ValueError(f"{text!r} is not a valid command line: {problem}") from None
    if not argv:
        raise ValueError("the command is empty")
    return argv
