"""What a server tells of one name, and what hibali keeps beside a file there: its digest, time and mode, for one very content."""

from __future__ import annotations

import contextlib
import re
from email.utils import formatdate, parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import quote

from transfers.entry import Entry, Kind
from transfers.stores.webdav_xml import KNOWN, Told

_SECOND = 1_000_000_000
_FIRST_SECOND, _LAST_SECOND = (
    -30_610_224_000,
    253_402_300_799,
)  # of the years 1000 and 9999: what an HTTP date says
_FIRST_IN_HEADER = 86_401  # Nextcloud answers 500 to an X-OC-Mtime of the first day of 1970 or before
_WORD = re.compile(r"1 ([0-9a-f]{64}) (\d{1,20}) (-?\d{1,28}) (-1|\d{1,4}) (\S{1,500})")


class Found(NamedTuple):
    """One name as the server tells it. `tag` changes with the content as far as it can tell; size -1: not told."""

    folder: bool
    size: int
    mtime_ns: int
    tag: str
    digest: str | None = None
    mode: int = -1

    def entry(self, path: bytes) -> Entry:
        """The same as an entry."""
        if self.folder:
            return Entry(path, Kind.FOLDER)
        return Entry(
            path, Kind.FILE, self.size, self.mtime_ns, self.mode, etag=self.tag or None, digest=self.digest
        )

    def is_still(self, entry: Entry) -> bool:
        """Whether this is what was listed as `entry`."""
        if self.folder or entry.kind is Kind.FOLDER:
            return self.folder and entry.kind is Kind.FOLDER
        if entry.etag and self.tag:
            return (entry.etag, entry.size) == (self.tag, self.size)
        return (entry.size, entry.mtime_ns) == (self.size, self.mtime_ns)


def found_of(told: Told) -> Found:
    """What an answer to PROPFIND says of a name; what hibali kept counts only for the same tag and size."""
    if told.folder:
        return Found(folder=True, size=0, mtime_ns=0, tag="")
    told_size = told.properties.get("DAV: getcontentlength", "")
    size = int(told_size) if told_size.isdigit() and len(told_size) < 20 else -1
    modified = told.properties.get("DAV: getlastmodified", "")
    tag = tag_of(told.properties.get("DAV: getetag", ""), modified)
    known = _WORD.fullmatch(told.properties.get(KNOWN, ""))
    if known and (int(known[2]), known[5]) == (size, quote(tag, safe="")):
        return Found(
            folder=False, size=size, mtime_ns=int(known[3]), tag=tag, digest=known[1], mode=int(known[4])
        )
    return Found(folder=False, size=size, mtime_ns=time_of(modified), tag=tag)


def known_word(entry: Entry, digest: str, tag: str) -> str:
    """What is kept of a file that landed."""
    return f"1 {digest} {entry.size} {entry.mtime_ns} {entry.mode & 0o777 if entry.mode >= 0 else -1} {quote(tag, safe='')}"


def tag_of(etag: str, modified: str) -> str:
    """One way to write an entity tag: servers give it weak for the first second, or without quotes; without one, the time."""
    plain = etag.removeprefix("W/").strip('"')
    return plain or (f"@{time_of(modified)}" if modified else "")


def time_of(modified: str) -> int:
    """An HTTP date in nanoseconds since the epoch; 0 where it cannot be understood."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return int(parsedate_to_datetime(modified).timestamp()) * _SECOND
    return 0


def header_seconds(mtime_ns: int) -> int:
    """A time in the whole seconds of `X-OC-Mtime`; the nearest one that servers accept."""
    return min(max(mtime_ns // _SECOND, _FIRST_IN_HEADER), _LAST_SECOND)


def date_of(mtime_ns: int) -> str:
    """The same the other way round, in whole seconds; the nearest one where an HTTP date cannot say it."""
    return formatdate(min(max(mtime_ns // _SECOND, _FIRST_SECOND), _LAST_SECOND), usegmt=True)
