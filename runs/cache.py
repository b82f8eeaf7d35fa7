"""Name, lease and record the entries of a site's cache, and account for what a site purges."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hibali.config.model import Purge, Site
from hibali.errors import HibaliError
from hibali.events import Listener, Noted, ignore
from hibali.ledger import Journal, ledger_folder, read_records, seconds_of
from hibali.text import as_text, counted, printable
from runs.model import RUN_ID, Run
from transfers.model.entry import Entry, Kind
from transfers.remote.host import RemoteHost

CONTENT, ORIGIN, IMAGE = "sha256", "origin", "image"
_HEX = r"[0-9a-f]{64}"
_NAME = re.compile(rf"(?:({CONTENT}|{ORIGIN})|{IMAGE}:([a-z][a-z0-9_-]*)):({_HEX})")
_BELOW = re.compile(rb"cache/(sha256|origin)/[0-9a-f]{2}/([0-9a-f]{64})(?:/(.+))?", re.DOTALL)
_IMAGE_BELOW = re.compile(rb"images/([a-z][a-z0-9_-]*)/([0-9a-f]{64})(?:/(.+))?", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """One entry: `sha256` is a file or tree named by its content, `origin` a tree named by its source, `image` an image for a container
    `runtime`, named by its archive.
    """

    kind: str
    digest: str
    runtime: str = ""

    @property
    def text(self) -> str:
        """`sha256:HEX`, `origin:HEX` or `image:RUNTIME:HEX`."""
        return ":".join(part for part in (self.kind, self.runtime, self.digest) if part)

    @property
    def path(self) -> bytes:
        """The entry's path below the site's work folder."""
        if self.kind == IMAGE:
            return f"images/{self.runtime}/{self.digest}".encode("ascii")
        return f"cache/{self.kind}/{self.digest[:2]}/{self.digest}".encode("ascii")


def read_name(text: object) -> Name | None:
    """Read an entry that `Name.text` wrote; None for anything else."""
    found = _NAME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    return Name(found[1] or IMAGE, found[3], found[2] or "")


def split_path(path: bytes) -> tuple[Name, bytes] | None:
    """Return the entry of a path below the work folder, and the rest of the path; None if it is in no entry."""
    found = _BELOW.fullmatch(path)
    if found is not None:
        name = Name(found[1].decode("ascii"), found[2].decode("ascii"))
    else:
        found = _IMAGE_BELOW.fullmatch(path)
        if found is None:
            return None
        name = Name(IMAGE, found[2].decode("ascii"), found[1].decode("ascii"))
    return name, found[3] or b""


class CacheRecords:
    """The records of one site's cache in the ledger; read once, when they are first used."""

    def __init__(self, site: str) -> None:
        self._path = ledger_folder("runs", "cache") / f"{site}.entries"

    def mark_of(self, path: bytes) -> str | None:
        """Return an entry's metadata digest from when it was hashed."""
        return self._marks.get(as_text(path))

    def source_of(self, path: bytes) -> str:
        """Return the last recorded source of an entry; "" if unknown."""
        return self._sources.get(as_text(path), "")

    def content_of(self, origin: str) -> str | None:
        """Return the sha256 of a remote file, by the digest of its origin."""
        return self._contents.get(origin)

    def note_mark(self, path: bytes, mark: str, source: str = "") -> None:
        """Record that an entry is valid with this metadata digest."""
        text = as_text(path)
        self._marks[text] = mark
        record = {"kind": "cached", "path": text, "mark": mark}
        if source:
            self._sources[text] = source
            record["source"] = source
        self._append(record)

    def note_content(self, origin: str, digest: str) -> None:
        """Record the content of a remote file."""
        self._contents[origin] = digest
        self._append({"kind": "named", "origin": origin, "digest": digest})

    def _append(self, record: dict[str, Any]) -> None:
        with contextlib.closing(Journal(self._path)) as journal:
            journal.append({"schema": 1, **record})

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        return list(read_records(self._path, is_cache=True))

    @cached_property
    def _marks(self) -> dict[str, str]:
        return {str(each["path"]): str(each["mark"]) for each in self._records if "mark" in each}

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {str(each["path"]): str(each["source"]) for each in self._records if "source" in each}

    @cached_property
    def _contents(self) -> dict[str, str]:
        return {str(each["origin"]): str(each["digest"]) for each in self._records if "origin" in each}


HELD = b"cache/held"
_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Use:
    """The entries that one run uses or used; `at_ns` is the time of its first use, by the clock of the site's filesystem."""

    run: str
    names: frozenset[Name]
    at_ns: int = 0


class Hold:
    """The entries that one run holds, in a file of its own at the site."""

    def __init__(self, host: RemoteHost, work: bytes, run: str) -> None:
        """`work` is the site's work folder, absolute."""
        self._host = host
        self._folder = work + b"/" + HELD
        self._run = run
        self._names: frozenset[Name] = frozenset()

    def add(self, *names: Name) -> None:
        """Hold more entries, durably at the site."""
        if self._names.issuperset(names):
            return
        if not self._names:
            self._host.make_folder(self._folder)
        self._names |= frozenset(names)
        lines = "".join(f"{name.text}\n" for name in sorted(self._names))
        self._host.put(_file(self._folder, self._run), lines.encode("ascii"))


def _file(folder: bytes, run: str) -> bytes:
    return folder + b"/" + run.encode("ascii")


def run_of(name: bytes) -> str | None:
    """Return the run to which a hold file of this name belongs; None if it is no hold file."""
    text = name.decode("ascii", "replace")
    return text if RUN_ID.fullmatch(text) else None


def read_use(host: RemoteHost, work: bytes, run: str, at_ns: int = 0) -> Use | None:
    """Read a run's hold file, with one name on each line; None if there is none."""
    path = _file(work + b"/" + HELD, run)
    content = b""
    while part := host.get(path, maximum=_PIECE, offset=len(content)):
        content += part
        if len(part) < _PIECE:
            break
    if not content:
        return None
    names = (read_name(line) for line in content.decode("ascii", "replace").splitlines())
    return Use(run, frozenset(name for name in names if name is not None), at_ns)


def remove_use(host: RemoteHost, work: bytes, run: str) -> None:
    """Remove a run's hold file."""
    host.remove_tree(_file(work + b"/" + HELD, run))


_DAY_NS = 86_400 * 1_000_000_000
_LAST_RUNS = 20
_AT_ONCE = 200  # paths in one command line
# options of touch(1): each of them also sets the ctime
_TOUCH = {"mtime": "-m", "atime": "-a", "ctime": "-a"}


def time_ns(purge: Purge, entry: Entry) -> int:
    """Return the time of a file by which the site deletes it. Access times are not listed, but are never earlier than the ctime."""
    return entry.mtime_ns if purge.by == "mtime" else entry.ctime_ns


def oldest_ns(purge: Purge, entries: Iterable[Entry]) -> int | None:
    """Return the earliest time of these files; None if there are none."""
    return min((time_ns(purge, each) for each in entries if each.kind is Kind.FILE), default=None)


def is_purged_within(purge: Purge, oldest: int, now_ns: int, wait_seconds: float) -> bool:
    """Return whether the site deletes a file of that time within `wait_seconds`."""
    return now_ns + wait_seconds * 1e9 - oldest >= purge.days * _DAY_NS


def expected_wait(runs: Iterable[Run], site: str) -> float:
    """Return the longest time in seconds that one of the last runs at the site waited for its start; 0 if unknown."""
    waits = [
        _seconds(run.created, run.status.started) for run in runs if run.site == site and run.status.started
    ]
    return max(waits[-_LAST_RUNS:], default=0.0)


def _seconds(first: str, last: str) -> float:
    began, ended = seconds_of(first), seconds_of(last)
    return 0.0 if began is None or ended is None else max(0.0, ended - began)


class Times:
    """The file times at a site that deletes old files."""

    def __init__(self, host: RemoteHost, purge: Purge, root: bytes, on_event: Listener = ignore) -> None:
        """`root` is the folder in which the site deletes, absolute."""
        self._host = host
        self._root = root.rstrip(b"/")
        self._on_event = on_event
        self.purge = purge

    def covers(self, path: bytes) -> bool:
        """Return whether the site deletes files at a path."""
        return path == self._root or path.startswith(self._root + b"/")

    def begin(self, paths: Sequence[bytes]) -> None:
        """Set the times of new copies to now, because they have the times of their originals."""
        covered = [path for path in paths if self.covers(path)]
        if self.purge.by != "ctime":
            for start in range(0, len(covered), _AT_ONCE):
                some = covered[start : start + _AT_ONCE]
                self._touch(("touch", "-c", _TOUCH[self.purge.by], "--", *some), some[0])

    def may_refresh(self, path: bytes) -> bool:
        """Return whether the site's configuration allows setting the times at a path."""
        return self.purge.refresh_times and self.covers(path)

    def needs_refresh(self, oldest: int | None) -> bool:
        """Return whether half of the time before a deletion is over."""
        return oldest is not None and is_purged_within(
            self.purge, oldest, time.time_ns(), self.purge.days * 43_200.0
        )

    def refresh(self, path: bytes) -> None:
        """Set the times of all files at a path to now."""
        touch = ("touch", "-c", _TOUCH[self.purge.by], "--", "{}", "+")
        self._touch(("find", path, "-type", "f", "-exec", *touch), path)

    def warn(self, label: str, path: bytes, oldest: int | None, wait_seconds: float) -> None:
        """Warn of files that the site deletes before a run can start."""
        now = time.time_ns()
        if (
            oldest is None
            or not self.covers(path)
            or not is_purged_within(self.purge, oldest, now, wait_seconds)
        ):
            return
        age = max(0, now - oldest) // _DAY_NS
        self._on_event(
            Noted(
                f"{label}: the site deletes files {counted(self.purge.days, 'day')} after their {self.purge.by}; this one is {counted(age, 'day')} old, and runs"
                f" there waited up to {_rounded(wait_seconds)}: it may be deleted before the run starts ({printable(path)})"
            )
        )

    def _touch(self, argv: Sequence[bytes | str], subject: bytes) -> None:
        try:
            failed = self._host.run(argv, timeout=600.0).exit_code != 0
        except HibaliError:
            failed = True
        if failed:
            self._on_event(
                Noted(f"the times of {printable(subject)} could not be set: the site may delete it soon")
            )


def times_at(host: RemoteHost, site: Site, on_event: Listener = ignore) -> Times | None:
    """Return the times of a site that deletes old files; None for another site."""
    if site.purge is None:
        return None
    return Times(host, site.purge, host.expand(site.roots[site.purge.root]), on_event)


def _rounded(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min"
