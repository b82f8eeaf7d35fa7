"""What an input is: its content where it lies here, what its store or its site says of it elsewhere."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import NotFoundError, UsageError
from hibali.locations import Location
from hibali.text import printable
from runs.cache_entry import CONTENT, ORIGIN, Name
from runs.local_content import LocalContent, unreadable
from transfers.entry import Entry, Kind
from transfers.far import Far


@dataclass(frozen=True, slots=True)
class Identity:
    """What an input is: `text` goes into the run's key; `digest` names it in the cache, "" where it is used in place.

    `files` are the digests by relative path of what is to be staged (b"" for a single file), None where
    they are not known before. `size` is in bytes, None where nobody looked.
    """

    text: str
    digest: str = ""
    files: dict[bytes, str] | None = None
    size: int | None = None

    @property
    def name(self) -> Name:
        """Its entry in a cache."""
        return Name(ORIGIN if self.files is None else CONTENT, self.digest)


def identify_local(path: Path) -> Identity:
    """The content of a file or folder here, hashed now unless it was and has not changed since.

    Raises `NotFoundError`, `UsageError` for what is neither.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            "no-such-input",
            "there is no such input file",
            about=printable(os.fsencode(path)),
            hint="Relative paths in an invocation are taken from the current folder.",
        ) from None
    except OSError as problem:
        raise unreadable(os.fsencode(path), problem) from None
    content = LocalContent()
    if stat.S_ISREG(found.st_mode):
        digest = content.of_file(os.fsencode(path), found)
        return Identity(f"sha256:{digest}", digest, {b"": digest}, found.st_size)
    if stat.S_ISDIR(found.st_mode):
        digest, files, size = content.of_tree(os.fsencode(path))
        return Identity(f"tree:{digest}", digest, files, size)
    raise UsageError("bad-input", "an input is a file or a folder", about=printable(os.fsencode(path)))


def identify_elsewhere(location: Location, found: Entry | None) -> Identity:
    """An input at another site, by what its store says of it; raises `NotFoundError`."""
    if found is None:
        raise NotFoundError("no-such-input", "there is no such input at that site", about=location.text)
    mark = ":".join(str(part) for part in (found.kind, found.size, found.mtime_ns, found.etag or ""))
    text = f"site:{location.site.name}:{location.bucket or ''}:{location.path}:{mark}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return Identity(text, digest, size=found.size if found.kind is Kind.FILE else None)


def identify_at_site(far: Far, location: Location) -> tuple[Identity, bytes]:
    """An input that is at the run's site already, and its absolute path there; raises `NotFoundError`."""
    path = far.expand(location.path)
    found = far.stat(path)
    if found is None:
        raise NotFoundError("no-such-input", "there is no such input at the site", about=location.text)
    mark = ":".join(str(part) for part in (found.kind, found.size, found.mtime_ns, found.inode))
    return Identity(f"site:{location.site.name}:{printable(path)}:{mark}"), path
