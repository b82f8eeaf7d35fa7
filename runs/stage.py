"""Bringing inputs to a site once: into its content-addressed cache, or used where they already lie."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hibali.errors import IncompleteError, NotFoundError, UsageError
from hibali.events import Event, Listener, Moved, ignore
from hibali.ledger import Journal, ledger_folder, read_records
from hibali.locations import Location
from hibali.retry import with_retries
from hibali.sites import Site
from hibali.text import printable
from transfers.datasets.contents import is_reserved, look_into
from transfers.entry import Entry, Kind
from transfers.far import Far


class Carrier(Protocol):
    """How files get from one location to another; `runs.carry.Synchroniser`, unless a test counts."""

    def copy(self, source: Location, target: Location, tell: Listener, *, checksum: bool) -> None:
        """Bring a file or folder there, verified, or raise; with `checksum` what stands there is hashed."""

    def entries(self, location: Location) -> Iterable[Entry]:
        """Everything below a folder, in order."""


_FRESH_NS = 2_000_000_000  # a file changed this shortly before it was hashed can change again unseen


@dataclass(frozen=True, slots=True)
class Identity:
    """What an input is: `text` goes into the run's key; `digest` names it in the cache, "" where it is used in place.

    `files` are the digests by relative path of what is to be staged (b"" for a single file), None where
    they are not known before.
    """

    text: str
    digest: str = ""
    files: dict[bytes, str] | None = None


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
        raise _unreadable(os.fsencode(path), problem) from None
    known = _known_digests()
    if stat.S_ISREG(found.st_mode):
        digest = _digest_of(os.fsencode(path), found, known)
        return Identity(f"sha256:{digest}", digest, {b"": digest})
    if stat.S_ISDIR(found.st_mode):
        return _identify_tree(os.fsencode(path), known)
    raise UsageError("bad-input", "an input is a file or a folder", about=printable(os.fsencode(path)))


def _identify_tree(root: bytes, known: dict[str, str]) -> Identity:
    """A folder is the digest of its sorted names, kinds and contents. In a dataset, annexed files are files."""
    whole = hashlib.sha256()
    files: dict[bytes, str] = {}
    contents = look_into(root)
    for path, looked in _walk(root, b""):
        if contents is not None and is_reserved(path):
            continue
        content = contents.find(path) if contents is not None and stat.S_ISLNK(looked.st_mode) else None
        name, found = content if content is not None else (root + b"/" + path, looked)
        if stat.S_ISLNK(found.st_mode):
            what = b"l " + os.fsencode(_path(root, path).readlink())
        elif stat.S_ISDIR(found.st_mode):
            what = b"d"
        elif stat.S_ISREG(found.st_mode):
            files[path] = _digest_of(name, found, known)
            what = b"f " + files[path].encode("ascii")
        else:
            raise UsageError("bad-input", "a device, FIFO or socket cannot be staged", about=printable(path))
        whole.update(b"%d:%b%b\n" % (len(path), path, what))
    digest = whole.hexdigest()
    return Identity(f"tree:{digest}", digest, files)


def _walk(root: bytes, below: bytes) -> Iterable[tuple[bytes, os.stat_result]]:
    try:
        with os.scandir(root + b"/" + below) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            path = below + b"/" + entry.name if below else entry.name
            found = entry.stat(follow_symlinks=False)
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                yield from _walk(root, path)
    except OSError as problem:
        raise _unreadable(root + b"/" + below, problem) from None


def _digest_of(path: bytes, found: os.stat_result, known: dict[str, str]) -> str:
    """sha256 of a file here; remembered for as long as size, times, device and inode stay."""
    mark = f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
    if mark in known:
        return known[mark]
    try:
        with Path(os.fsdecode(path)).open("rb", buffering=0) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            after = os.fstat(stream.fileno())
    except OSError as problem:
        raise _unreadable(path, problem) from None
    if (after.st_size, after.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
        raise IncompleteError("input-changed", "the input changed while it was read", about=printable(path))
    if time.time_ns() - found.st_ctime_ns > _FRESH_NS:
        known[mark] = digest
        with contextlib.closing(Journal(_digest_book())) as journal:
            journal.append({"schema": 1, "kind": "digest", "mark": mark, "digest": digest})
    return digest


def _path(root: bytes, path: bytes) -> Path:
    return Path(os.fsdecode(root + b"/" + path))


def _known_digests() -> dict[str, str]:
    return {
        record["mark"]: record["digest"]
        for record in read_records(_digest_book())
        if isinstance(record.get("mark"), str) and isinstance(record.get("digest"), str)
    }


def _digest_book() -> Path:
    return ledger_folder("runs", "cache") / "here.digests"


def _unreadable(path: bytes, problem: OSError) -> UsageError:
    return UsageError(
        "unreadable-input", f"the input cannot be read: {problem.strerror}", about=printable(path)
    )


def identify_elsewhere(location: Location, found: Entry | None) -> Identity:
    """An input at another site, by what its store says of it; raises `NotFoundError`."""
    if found is None:
        raise NotFoundError("no-such-input", "there is no such input at that site", about=location.text)
    mark = ":".join(str(part) for part in (found.kind, found.size, found.mtime_ns, found.etag or ""))
    text = f"site:{location.site.name}:{location.bucket or ''}:{location.path}:{mark}"
    return Identity(text, hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest())


def identify_at_site(far: Far, location: Location) -> tuple[Identity, bytes]:
    """An input that is at the run's site already, and its absolute path there; raises `NotFoundError`."""
    path = far.expand(location.path)
    found = far.stat(path)
    if found is None:
        raise NotFoundError("no-such-input", "there is no such input at the site", about=location.text)
    mark = ":".join(str(part) for part in (found.kind, found.size, found.mtime_ns, found.inode))
    return Identity(f"site:{location.site.name}:{printable(path)}:{mark}"), path


def at_site(site: Site) -> Callable[[bytes], Location]:
    """Makes locations of absolute paths at a site."""

    def place(path: bytes) -> Location:
        text = path.decode("utf-8", "surrogateescape")
        return Location(site, text, f"{site.name}:{text}")

    return place


class Cache:
    """The content-addressed cache of a site, and what is remembered of it here (S5)."""

    def __init__(
        self, far: Far, site: str, work: bytes, target: Callable[[bytes], Location], carrier: Carrier
    ) -> None:
        """`work` is the site's work folder, absolute; `target` makes a location of an absolute path there."""
        self._far = far
        self._folder = work + b"/cache"
        self._book = ledger_folder("runs", "cache") / f"{site}.entries"
        self._target = target
        self._carrier = carrier

    def location(self, path: bytes) -> Location:
        """A path at the site as others open it."""
        return self._target(path)

    def bring_patiently(self, identity: Identity, source: Location, tell: Listener = ignore) -> bytes:
        """The same, where somebody else may be at it: whoever comes second waits for the lease."""
        return with_retries(
            lambda: self.bring(identity, source, tell), about=source.text, attempts=6, tell=tell
        )

    def bring(self, identity: Identity, source: Location, tell: Listener = ignore) -> bytes:
        """The absolute path at the site of a verified copy of `source`; nothing moves where there is one.

        Raises `IncompleteError` when the input is no longer what was identified.
        """
        digest = identity.digest
        kind = b"origin" if identity.files is None else b"sha256"
        path = self._folder + b"/%b/%b/%b" % (kind, digest[:2].encode("ascii"), digest.encode("ascii"))
        single = identity.files is not None and b"" in identity.files
        mark = self.mark(path)
        if mark is not None:
            if self._remembered().get(_text(path)) == mark:
                return path
            if single and self._far.digest(path) == digest:
                self._remember(path)
                return path
        self._far.make_folder(path.rpartition(b"/")[0])
        moved = _MovedDigests(tell)
        self._carrier.copy(source, self._target(path), moved, checksum=mark is not None)
        if single:
            if set(moved.digests.values()) != {digest} and self._far.digest(path) != digest:
                raise _changed(source)
        elif identity.files is not None and not moved.digests.items() <= identity.files.items():
            raise _changed(source)
        self._remember(path)
        return path

    def mark(self, path: bytes) -> str | None:
        """What would change if anybody touched a file or tree there; None where there is nothing."""
        entry = self._far.stat(path)
        if entry is None or entry.kind is Kind.FILE:
            return None if entry is None else _mark(entry)
        whole = hashlib.sha256()
        for below in self._carrier.entries(self._target(path)):
            whole.update(b"%d:%b%b\n" % (len(below.path), below.path, _mark(below).encode("ascii")))
        return whole.hexdigest()

    def _remembered(self) -> dict[str, str]:
        return {str(record.get("path")): str(record.get("mark")) for record in read_records(self._book)}

    def _remember(self, path: bytes) -> None:
        mark = self.mark(path)
        if mark is not None:
            with contextlib.closing(Journal(self._book)) as journal:
                journal.append({"schema": 1, "kind": "cached", "path": _text(path), "mark": mark})


class _MovedDigests:
    """A listener that keeps the digests of what moved, and passes everything on."""

    def __init__(self, tell: Listener) -> None:
        self.digests: dict[bytes, str] = {}
        self._tell = tell

    def __call__(self, event: Event) -> None:
        if isinstance(event, Moved) and event.digest is not None:
            self.digests[event.path] = event.digest
        self._tell(event)


def _mark(entry: Entry) -> str:
    """A folder's own times change when hibali locks it, so only what it holds counts."""
    if entry.kind is Kind.FOLDER:
        return entry.kind
    parts = (entry.kind, entry.device, entry.inode, entry.size, entry.mtime_ns, entry.ctime_ns)
    return ":".join(str(part) for part in parts)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _changed(source: Location) -> IncompleteError:
    return IncompleteError(
        "input-changed",
        "the input changed while it was staged",
        about=source.text,
        hint="Nothing was submitted. Let it come to rest and type the same line again.",
    )
