"""Read and write single small files at a site."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from hibali.errors import IncompleteError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.locations import Location, check_writable, listing_hint
from hibali.system_errors import reason_of
from hibali.text import printable
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import is_own_name, is_partial_name
from transfers.model.store import SmallFiles, Store
from transfers.model.units import PACK_BYTES, Committed, Item, ListingIncompleteError, Payload, Unit
from transfers.pipeline.batches import group_units
from transfers.planning.protected_roots import check_read_only_roots, check_root_exists, is_root
from transfers.remote.connection import error_from
from transfers.stores.open_store import open_beside, open_store
from transfers.stores.single_file import SingleSource


def contents(
    location: Location, *, recall: bool = False, on_event: Listener = ignore
) -> Generator[bytes | bytearray | memoryview, None, None]:
    """Stream the content of a regular file; symlinks are followed.

    Raises `NotFoundError`, `UsageError` for anything but a file, and `IncompleteError` if the file changed,
    is on tape (and `recall` is not set), or has another digest than the store reported. After an error,
    discard what was read.
    """
    with ExitStack() as stack:
        place = stack.enter_context(closing(open_store(location, on_event=on_event)))
        real = _real_place(location, place)
        folder = stack.enter_context(closing(open_beside(place, real.parent, on_event=on_event)))
        source = SingleSource(folder, real.name, real.name)
        entry = source.entry()
        if entry.offline and not recall:
            raise IncompleteError(
                "offline",
                "its content is not on disk (on tape, in an archive, or the file is one hole)",
                subject=location.text,
                hint="To read it anyway, add --recall.",
            )
        if entry.kind is not Kind.FILE:
            raise UsageError("not-a-file", "this is not a regular file", subject=location.text)
        yield from _bytes_of(source, entry, location.text)


def _real_place(location: Location, store: Store) -> Location:
    """Return the location of the file to which a symlink leads."""
    found = store.stat()
    if found is None:
        raise NotFoundError(
            "no-such-place", "it does not exist", subject=location.text, hint=listing_hint(location.text)
        )
    if found.kind is Kind.FOLDER:
        raise UsageError(
            "is-a-folder",
            "this is a folder",
            subject=location.text,
            hint=f"To list its content: hibali ls {location.text}",
        )
    if location.slash:
        raise UsageError(
            "not-a-folder", "this is a file, but the path ends with a slash", subject=location.text
        )
    return follow_links(location, store)


def follow_links(location: Location, store: Store) -> Location:
    """Return the location without symlinks, of a store that is open there; raise `RefusedError` for one of another account."""
    if not store.can(Store.identify):
        return location
    store.check_trusted()
    return replace(location, path=store.resolved()[0].decode("utf-8", "surrogateescape"))


def _bytes_of(source: SingleSource, entry: Entry, subject: str) -> Iterator[bytes | bytearray | memoryview]:
    summed = hashlib.sha256()
    size = 0
    for payload in source.read(group_units([Item(0, entry)], lambda: source.facts.segment_bytes)):
        if 0 in payload.problems:
            problem = payload.problems[0]
            raise error_from(problem.code, problem.message, subject)
        summed.update(payload.data)
        size += len(payload.data)
        yield payload.data
        if payload.unit.last:
            _check(payload, size, summed.hexdigest(), subject)


def _check(payload: Payload, size: int, digest: str, subject: str) -> None:
    known_digest = payload.digests[0]
    if size != payload.unit.items[0].entry.size or (known_digest is not None and known_digest != digest):
        raise differs(subject)


def differs(subject: str) -> IncompleteError:
    """Return the error for content that was read whole, and is not what the store recorded."""
    return IncompleteError(
        "differs",
        "the content does not match the size or digest of the file",
        subject=subject,
        hint="Discard what was read, and read it again.",
    )


_numbers = itertools.count()  # unique, because a store may keep files open by item number
_ALIGNED = 1024 * 1024
_NAME_BYTES = 255


def download_file(
    store: Store,
    entry: Entry,
    file: Path,
    progress: Callable[[int], None],
    *,
    digest: str | None = None,
    subject: str = "",
) -> None:
    """Download `entry` into `file`; `progress` is called with the number of bytes present.

    The content of `file`, or of its partial file, is taken as the start of the content. If the sha256 of the
    whole then differs from `digest` or from the store's, everything is downloaded again. `file` appears only
    when it is complete, because readers could read past its end. Raises `IncompleteError` if the second
    download differs, too, if the source changed, or if `file` cannot be written.
    """
    known = entry._replace(digest=digest or entry.digest)
    part = _part_of(file)
    try:
        if not part.exists():
            with suppress(FileNotFoundError):
                file.rename(part)
        with part.open("r+b" if part.exists() else "w+b") as stream:
            there = min(os.fstat(stream.fileno()).st_size, entry.size - 1) // _ALIGNED * _ALIGNED
            there = there if entry.size > PACK_BYTES else 0  # smaller files are downloaded whole
            whole = _download(store, known, stream, there, progress, subject)
            if not whole and not (there and _download(store, known, stream, 0, progress, subject)):
                raise _differs(subject)
        part.replace(file)
    except OSError as problem:
        raise _unwritable(problem, file) from None


def write_content(
    content: bytes, file: Path, progress: Callable[[int], None], *, digest: str | None, subject: str
) -> None:
    """Write a complete content to `file`; raises as `download_file` does."""
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise _differs(subject)
    part = _part_of(file)
    try:
        part.write_bytes(content)
        part.replace(file)
    except OSError as problem:
        raise _unwritable(problem, file) from None
    progress(len(content))


def _differs(subject: str) -> IncompleteError:
    message = "the content does not match its known digest"
    return IncompleteError("differs", message, subject=subject)


def _unwritable(problem: OSError, file: Path) -> IncompleteError:
    return IncompleteError("cannot-write", reason_of(problem), subject=printable(os.fsencode(file)))


def _part_of(file: Path) -> Path:
    """Return the partial file's path, unused content to git-annex; `file` if it is too long."""
    name = f"{file.name}.part"
    return file.with_name(name) if len(os.fsencode(name)) <= _NAME_BYTES else file


def _download(
    store: Store, entry: Entry, stream: IO[bytes], there: int, progress: Callable[[int], None], subject: str
) -> bool:
    """Download the content from offset `there`, and return whether the whole has the expected digest."""
    summed = _hash_beginning(stream, there)
    stream.truncate(there)
    known_digest = entry.digest
    units = group_units([Item(next(_numbers), entry)], lambda: store.facts.segment_bytes, lambda _: there)
    if there and known_digest and not store.can(Store.digest_ranges):
        # a store that cannot hash ranges would read the first part again for the digest
        units = (replace(unit, piece=True) for unit in units)
    for payload in store.read(units):
        if 0 in payload.problems:
            raise error_from(payload.problems[0].code, payload.problems[0].message, subject)
        stream.write(payload.data)
        summed.update(payload.data)
        known_digest = known_digest or payload.digests[0]
        progress(stream.tell())
    stream.flush()
    return stream.tell() == entry.size and known_digest in {None, summed.hexdigest()}


def _hash_beginning(stream: IO[bytes], size: int) -> Any:
    summed = hashlib.sha256()
    stream.seek(0)
    left = size
    while left:
        chunk = stream.read(min(left, _ALIGNED))
        summed.update(chunk)
        left -= len(chunk)
    return summed


_IN_THE_WAY = frozenset({"in-the-way", "not-a-folder"})


def make_place(location: Location, on_event: Listener = ignore) -> bool:
    """Create the folder and its parents; return whether it was missing.

    Object stores have no folders, which is reported. Raises `RefusedError` if a file is in the way or writing
    is not allowed.
    """
    check_writable(location)
    with closing(open_store(location, on_event=on_event)) as store:
        if not store.facts.writable:
            raise RefusedError("read-only-site", "this site can only be read", subject=location.text)
        found = store.stat()
        if not store.facts.folders:
            on_event(Noted(f"{location.text}: object stores have no folders; nothing was created"))
            return False
        if found is not None and found.kind is Kind.FOLDER:
            return False
        if found is not None:
            raise _in_the_way(location)
        check_read_only_roots(location, store.root_path, store)
        if not is_root(location):
            check_root_exists(location, store, open_store)
        try:
            store.make_root()
        except (IncompleteError, RefusedError) as problem:
            if problem.code not in _IN_THE_WAY:
                raise
            raise _in_the_way(location) from None
        return True


def _in_the_way(location: Location) -> RefusedError:
    return RefusedError(
        "in-the-way",
        "a file has this name or the name of a parent folder",
        subject=location.text,
        hint="Give it another name.",
    )


_MODE = 0o644
_EXISTS = "target-changed"  # the code of every store for an unexpected entry at the target


def open_small_files(location: Location, *, on_event: Listener = ignore) -> SmallFiles:
    """Open the small files at a location; the caller closes them. Raises the errors of connecting."""
    store = open_store(location, on_event=on_event)
    if store.can(Store.small_files):
        return store.small_files()
    return StoreFiles(store, location, on_event)


def content_mark(entry: Entry) -> str:
    """Return a text that changes with the content: ETag, size, times and inode, if the store has them."""
    facts = (entry.etag or "", entry.inode, entry.size, entry.mtime_ns, entry.ctime_ns)
    return "-".join(str(part) for part in facts)


class StoreFiles(SmallFiles):
    """Small files of any store; creating is protected by the store's lock."""

    def __init__(self, store: Store, location: Location, on_event: Listener = ignore) -> None:
        self._store = store
        self._location = location
        self._on_event = on_event

    def list(self) -> Iterator[Entry]:
        """See SmallFiles. Folders that cannot be listed are skipped."""
        root = self._store.stat()
        if root is None:
            raise NotFoundError(
                "no-such-place",
                "it does not exist",
                subject=self._location.text,
                hint=f"To create it: hibali mkdir {self._location.text}",
            )
        if root.kind is not Kind.FOLDER:
            raise UsageError("not-a-folder", "this is not a folder", subject=self._location.text)
        try:
            for entry in self._store.list():
                if entry.kind is Kind.FILE and not (is_own_name(entry.path) or is_partial_name(entry.path)):
                    yield entry
        except ListingIncompleteError:
            return

    def read(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """See SmallFiles."""
        items = [Item(number, entry) for number, entry in enumerate(entries)]
        for payload in self._store.read(group_units(items, lambda: PACK_BYTES)):
            at = 0
            for position, (item, size) in enumerate(zip(payload.unit.items, payload.sizes, strict=True)):
                problem = payload.problems.get(position)
                if problem is not None:
                    raise error_from(problem.code, problem.message, self._subject(item.entry.path))
                yield bytes(payload.data[at : at + size])
                at += size

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See SmallFiles."""
        if not self._store.facts.writable:
            raise RefusedError("read-only-site", "this site can only be read", subject=self._location.text)
        check_read_only_roots(self._location, self._store.root_path, self._store)
        if not self._store.facts.locks:
            yield
            return
        try:
            lock = self._store.lock("publish")
        except RefusedError as refused:
            if refused.code != "not-private":
                raise
            raise TryLaterError(
                "locked",
                "another account is writing there, or was interrupted while writing",
                subject=self._location.text,
                hint="Try again later. If the lock stays, the other user must run the interrupted command again.",
            ) from None
        try:
            yield
            lock.finish()
        finally:
            lock.release()

    def create(self, contents: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """See SmallFiles."""
        if not contents:
            return {}
        changed = time.time_ns()
        items = [
            Item(number, Entry(path, Kind.FILE, len(content), changed, _MODE), exact=True)
            for number, (path, content) in enumerate(contents.items())
        ]
        with closing(self._store.write(_payloads(items, contents))) as results:
            existing = [self._existing_path(result) for result in results if result.problem is not None]
        found = dict(zip(existing, self.read(self._entry_at(path) for path in existing), strict=True))
        return {path: content for path, content in found.items() if content != contents[path]}

    def _existing_path(self, result: Committed) -> bytes:
        path, problem = result.item.entry.path, result.problem
        if problem is not None and problem.code != _EXISTS:
            raise error_from(problem.code, problem.message, self._subject(path))
        return path

    def _entry_at(self, path: bytes) -> Entry:
        found = self._store.stat(path)
        if found is None or found.kind is not Kind.FILE or found.size > PACK_BYTES:
            raise IncompleteError(
                "in-the-way", "the existing entry is not a small file", subject=self._subject(path)
            )
        return found

    def _subject(self, path: bytes) -> str:
        return self._location.child(path).text

    def close(self) -> None:
        """See SmallFiles."""
        self._store.close()


def _payloads(items: Iterable[Item], contents: Mapping[bytes, bytes]) -> Iterator[Payload]:
    for unit in group_units(items, lambda: PACK_BYTES):
        yield _payload(unit, [contents[item.entry.path] for item in unit.items])


def _payload(unit: Unit, contents: list[bytes]) -> Payload:
    digests: list[str | None] = [hashlib.sha256(content).hexdigest() for content in contents]
    sizes = [len(content) for content in contents]
    return Payload(unit, b"".join(contents), sizes, digests, [Verification.DIGEST] * len(contents))
