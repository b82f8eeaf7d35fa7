"""List keys in byte order within bounded memory, name those that are no paths, and cache what is known of them."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import json
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from hibali.documents import line_of_json
from hibali.errors import IncompleteError
from hibali.events import Listener, Noted
from hibali.files import private_folder, state_folder, write_atomic
from hibali.ledger import Journal, read_records
from hibali.text import path_from_fields, printable
from transfers.model.entry import Entry, Kind
from transfers.model.facts import is_own_name, unsafe_component
from transfers.model.units import MISSING, ListingIncompleteError, Problem
from transfers.stores.server.manifest import Known, known_of, record_of

_RUN = 150_000  # names that are sorted in memory at once: about 50 MB
MOST_UNLISTED = 100_000  # names in memory, and in a receipt
_MISSING = Problem(MISSING, "it is recorded in .hibali/manifest.jsonl, but the server does not list it")


class Listed(NamedTuple):
    """A listed key relative to the root; `modified` as sent. A folder's key ends in a slash.

    An `archived` object cannot be read before it is restored.
    """

    path: bytes
    size: int
    etag: str
    modified: str
    archived: bool = False


def in_order(found: Iterable[Listed], subject: str) -> Iterator[Listed]:
    """Yield the keys in canonical order: sort runs, spill several to disk, and merge them.

    Servers differ (SeaweedFS lists `a/b a/c a-x a.b a0`). Raises `IncompleteError("listing-violation")`
    if a name occurs twice.
    """
    coming = iter(found)
    runs: list[IO[bytes]] = []
    try:
        last = sorted(islice(coming, _RUN))
        while more := list(islice(coming, _RUN)):
            runs.append(_spilled(last))
            last = sorted(more)
        before: bytes | None = None
        for listed in heapq.merge(*(_read(run) for run in runs), last) if runs else last:
            path = listed.path
            if before is not None and path <= before:
                raise violation(subject, f"{printable(path)} is listed twice")
            before = path
            yield listed
    finally:
        for run in runs:
            run.close()


def _spilled(run: list[Listed]) -> IO[bytes]:
    stream = tempfile.TemporaryFile()  # noqa: SIM115  # closed by who merges
    for listed in run:
        line = json.dumps([listed.path.decode("latin-1"), *listed[1:]], separators=(",", ":"))
        stream.write(line.encode("ascii") + b"\n")
    stream.seek(0)
    return stream


def _read(run: IO[bytes]) -> Iterator[Listed]:
    for line in run:
        path, *rest = json.loads(line)
        yield Listed(path.encode("latin-1"), *rest)


class Unlisted:
    """The files that a listing of keys cannot yield: keys that are no paths (S1), and recorded files that are missing."""

    def __init__(self, subject: str, prefix: bytes = b"") -> None:
        """`subject` names the site in the error; `prefix` comes before all listed keys."""
        self._subject = subject
        self._prefix = prefix
        self._known: list[tuple[Entry, Problem]] = []
        self._more = 0
        self._more_missing = False

    def data(self, ordered: Iterable[Listed]) -> Iterator[Listed]:
        """Yield files, and folders with size -1; skip hibali's own names, and add keys that cannot be paths.

        Empty objects that other tools store for folders, and `--keep-empty-folders`, are folders.
        """
        for listed in ordered:
            path, size = listed.path, listed.size
            if size > 0 and b".hibali" not in path and unsafe_component(path) is None:
                yield listed  # nearly all
                continue
            if is_folder_marker(listed):
                if not path:
                    continue  # the root's own
                listed = listed._replace(size=-1)  # noqa: PLW2901  # a folder, as of a shallow listing
            if is_own_name(path.removesuffix(b"/") if listed.size < 0 else path):
                continue
            if self._is_path(listed):
                yield listed

    def _is_path(self, listed: Listed) -> bool:
        """Return whether the key is safe as a path; another one is added."""
        reason = unsafe_component(listed.path.removesuffix(b"/") if listed.size < 0 else listed.path)
        if reason is not None:
            path = listed.path or b"/"  # never the root
            entry = Entry(path, Kind.FILE, max(listed.size, 0), time_of(listed.modified))
            key = printable(self._prefix + listed.path)
            self._add(entry, Problem("unsafe-name", f"the key {key} cannot be a path: {reason}"))
        return reason is None

    def add_missing(self, missing: Iterable[tuple[bytes, Known]]) -> None:
        """Add the files that a digest manifest records and that are not listed."""
        for path, known in missing:
            if len(self._known) >= MOST_UNLISTED:
                self._more_missing = True
                break
            self._add(Entry(path, Kind.FILE, known.size, known.mtime_ns, digest=known.sha256), _MISSING)

    def _add(self, entry: Entry, problem: Problem) -> None:
        if len(self._known) < MOST_UNLISTED:
            self._known.append((entry, problem))
        else:
            self._more += 1

    def end(self, problems: Sequence[tuple[bytes, Problem]] = ()) -> None:
        """Raise `ListingIncompleteError` if there are any, or folders that could not be listed (`problems`)."""
        if self._more:
            more = Problem("listing-incomplete", f"{self._more} more names could not be listed")
            problems = [*problems, (b"", more)]
        if self._more_missing:  # no problem of a target, as those that are named: see `of_target`
            message = f"more than {MOST_UNLISTED} recorded files are not at the server"
            self._known.append((Entry(b"", Kind.FOLDER), Problem("listing-incomplete", message)))
        if problems or self._known:
            raise ListingIncompleteError(self._subject, problems, self._known)


def is_folder_marker(listed: Listed) -> bool:
    """Return whether this is another tool's empty object for a folder; `b""` is the root's own."""
    return listed.size == 0 and (not listed.path or listed.path.endswith(b"/"))


class HidingFiles:
    """The empty objects of one root that have the name of a folder, which is used instead; each is noted once."""

    def __init__(self, subject: str, on_event: Listener) -> None:
        self._subject = subject
        self._on_event = on_event
        self._noted: set[bytes] = set()

    def folder(self, entry: Entry, key: bytes) -> Entry:
        """Return the folder's entry, after a note on the empty object with its key."""
        if key not in self._noted:
            self._noted.add(key)
            self._on_event(
                Noted(
                    f"{self._subject}: {printable(key)} is an empty object and a folder; the folder is used."
                )
            )
        return entry


def time_of(modified: str) -> int:
    """Convert LastModified to nanoseconds since the epoch; 0 if it is not an ISO 8601 time."""
    try:
        return round(datetime.fromisoformat(modified).timestamp() * 1000) * 1_000_000
    except (ValueError, OverflowError):
        return 0


def violation(subject: str, reason: str) -> IncompleteError:
    """Return the error for a listing that contradicts itself."""
    return IncompleteError(
        "listing-violation",
        f"the listing cannot be trusted: {reason}",
        subject=subject,
        hint="Nothing was deleted. If it happens again, report it to the server's administrator.",
    )


_SLACK = 10_000  # rewrite the file when it has more outdated lines than this


class Cache:
    """The append-only metadata cache of one root; thread-safe. Errors in it only cost extra requests."""

    def __init__(self, site: str, endpoint: str, bucket: str, root: bytes) -> None:
        identity = b"\n".join((endpoint.encode(), bucket.encode(), root))
        folder = private_folder(private_folder(state_folder() / "sites") / site)
        self._path: Path = folder / f"{hashlib.sha256(identity).hexdigest()[:32]}.jsonl"
        self._known: dict[bytes, tuple[str, Known]] | None = None
        self._journal: Journal | None = None
        self._lock = threading.Lock()

    def find(self, listed: Listed) -> Known | None:
        """Return the cached metadata of this version of the object."""
        modified, known = self._load().get(listed.path, ("", None))
        if known is None or (known.etag, known.size, modified) != (listed.etag, listed.size, listed.modified):
            return None
        return known

    def add(self, listed: Listed, known: Known) -> None:
        """Cache the metadata of this object."""
        self._load()[listed.path] = (listed.modified, known)
        self._append({**record_of(listed.path, known), "modified": listed.modified})

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _append(self, record: dict[str, Any]) -> None:
        with self._lock:
            if self._journal is None:
                self._journal = Journal(self._path)
            self._journal.append(record)

    def _load(self) -> dict[bytes, tuple[str, Known]]:
        if self._known is not None:
            return self._known
        self._known = {}
        count = 0
        with contextlib.suppress(OSError):
            for record in read_records(self._path, is_cache=True):
                count += 1
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    _read_record(self._known, record)
        if count > 2 * len(self._known) + _SLACK:
            self._compact(self._known)
        return self._known

    def _compact(self, known: dict[bytes, tuple[str, Known]]) -> None:
        lines = [line_of_json({**record_of(p, k), "modified": m}) for p, (m, k) in known.items()]
        with contextlib.suppress(OSError):
            write_atomic(self._path, "".join(f"{line}\n" for line in lines).encode("ascii"))


def _read_record(known: dict[bytes, tuple[str, Known]], record: dict[str, Any]) -> None:
    known[path_from_fields(record, "key")] = (str(record["modified"]), known_of(record))
