"""When a file that somebody may still write counts as finished, told from what looks at it saw; nothing here waits or looks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hibali.errors import UsageError
from transfers.entry import Entry, Kind
from transfers.snapshot import Seen

QUIET_SECONDS = 30.0
_LONGEST_PAUSE = 5.0
_SHORTEST_PAUSE = 0.2
_SHARE = 9  # a look may take a tenth of the time at most

_Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Following:
    """How growing data is followed.

    A file is finished when its size and time stayed the same for `quiet` seconds; where there is a `marker`, when that is there
    instead. `until` is a file of this machine that says that all is. Files that match one of `append` only ever grow.
    """

    quiet: float = QUIET_SECONDS
    marker: bytes | None = None
    until: Path | None = None
    append: tuple[str, ...] = ()

    def pause(self, seconds: float) -> float:
        """How long to wait after a look and what goes with it took so long, in seconds."""
        return max(_SHORTEST_PAUSE, min(_LONGEST_PAUSE, self.quiet / 3), _SHARE * seconds)


def read_marker(text: bytes) -> bytes:
    """`NAME`, or a pattern with one `*` for the name of the file that it marks; raises `UsageError`."""
    if not text.strip(b"*") or text.count(b"*") > 1 or b"/" in text or text in {b".", b".."}:
        raise UsageError(
            "bad-marker",
            "a marker is a name, or has one * for the name of the file beside it",
            about=text.decode("utf-8", "replace"),
            hint="Examples: '*.done', CopyComplete.txt",
        )
    return text


def marker_names(marker: bytes, path: bytes) -> tuple[bytes, ...]:
    """The paths of which one says that `path` is finished.

    A pattern stands for the file's name, or its name without the last suffix, beside it; a name marks all in and below its folder.
    """
    folder, slash, name = path.rpartition(b"/")
    before, star, after = marker.partition(b"*")
    if star:
        stem = name.rpartition(b".")[0]
        return tuple(folder + slash + before + one + after for one in (name, stem) if one)
    found = []
    while folder:
        found.append(folder + b"/" + marker)
        folder = folder.rpartition(b"/")[0]
    return (*found, marker)


def is_marker(marker: bytes | None, path: bytes) -> bool:
    """Whether the file is itself a marker."""
    if marker is None:
        return False
    name = path.rpartition(b"/")[2]
    before, star, after = marker.partition(b"*")
    if not star:
        return name == marker
    return len(name) > len(marker) - 1 and name.startswith(before) and name.endswith(after)


def see(entry: Entry, before: Seen | None, now: float, *, renamed: bool) -> Seen:
    """What a look at `now` makes of an entry, after what the look before it knew of that name."""
    if before is None or identity(before.entry) != identity(entry):
        return Seen(entry, now, renamed=renamed)
    return Seen(entry, before.since, before.looks + 1, before.renamed)


def identity(entry: Entry) -> tuple[object, ...]:
    """What differs when somebody wrote to a file, or put another in its place."""
    return (entry.kind, entry.size, entry.mtime_ns, entry.device, entry.inode, entry.link)


def is_quiet(seen: Seen, now: float, quiet: float) -> bool:
    """Whether it has stayed as it is for so many seconds, or came by a rename, or is nothing that is written to."""
    return seen.renamed or seen.entry.kind is not Kind.FILE or now - seen.since >= quiet


class Renames:
    """Files of the look before by their inodes, so that a new name of a known file is known for what it is."""

    def __init__(self, most: int = 100_000) -> None:
        """Beyond so many files no more are remembered: a rename of those is not noticed."""
        self._most = most
        self._known: dict[_Identity, tuple[int, int, bool]] = {}

    def remember(self, entry: Entry, *, taken: bool) -> None:
        """A file as this look saw it; `taken` where its name is one that travels."""
        if entry.kind is Kind.FILE and entry.inode and entry.links == 1 and len(self._known) < self._most:
            self._known[entry.device, entry.inode] = (entry.size, entry.mtime_ns, taken)

    @property
    def count(self) -> int:
        """How many are remembered."""
        return len(self._known)

    def meets(self, entry: Entry) -> bool:
        """Whether a file that is new under its name is one of the look before, renamed when it was complete.

        From a name that does not travel: whoever writes so renames last. From any other only where nothing was written since,
        because an inode is soon used again.
        """
        known = self._known.get((entry.device, entry.inode))
        if known is None or entry.kind is not Kind.FILE or entry.links != 1:
            return False
        size, mtime_ns, taken = known
        if taken:
            return (entry.size, entry.mtime_ns) == (size, mtime_ns)
        return entry.size >= size and entry.mtime_ns >= mtime_ns
