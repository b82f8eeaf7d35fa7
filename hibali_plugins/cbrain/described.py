"""Keep what hibali knows about a userfile in its description: digest, size, time and mode.

The API has no checksums and sets no times. A listing has the descriptions of all userfiles, so this needs no further
request. The record counts only while the size is the same; other text in the description is kept.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hibali_plugins.cbrain.records import Userfile
from transfers.model.entry import Entry, Kind

_RECORD = re.compile(
    r"^hibali: sha256=(?P<digest>[0-9a-f]{64}) size=(?P<size>[0-9]{1,18})"
    r" mtime_ns=(?P<mtime_ns>-?[0-9]{1,21}) mode=(?P<mode>[0-7]{1,3}|-)$",
    re.MULTILINE,
)


class Described(NamedTuple):
    """What a description records."""

    digest: str
    mtime_ns: int
    mode: int


def described(userfile: Userfile) -> Described | None:
    """Return what the description records about the current content, or None."""
    found = _RECORD.search(userfile.description)
    if found is None or int(found["size"]) != userfile.size:
        return None
    mode = -1 if found["mode"] == "-" else int(found["mode"], 8)
    return Described(found["digest"], int(found["mtime_ns"]), mode)


def description_of(entry: Entry, digest: str, earlier: str = "") -> str:
    """Return the description that records a file, with the other text of an earlier one."""
    mode = "-" if entry.mode < 0 else f"{entry.mode & 0o777:o}"
    record = f"hibali: sha256={digest} size={entry.size} mtime_ns={entry.mtime_ns} mode={mode}"
    others = _RECORD.sub("", earlier).strip()
    return f"{others}\n{record}" if others else record


def tag_of(userfile: Userfile) -> str:
    """Return the tag of a version: a replaced file has another id."""
    return f"{userfile.id}-{userfile.size}"


def entry_of(path: bytes, userfile: Userfile) -> Entry:
    """Return the entry of a single file; one that the portal still copies has size 0 and no time."""
    known = described(userfile)
    entry = Entry(path, Kind.FILE, userfile.size or 0, etag=tag_of(userfile))
    if known is None:
        return entry
    return entry._replace(mtime_ns=known.mtime_ns, mode=known.mode, digest=known.digest)
