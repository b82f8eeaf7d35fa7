"""Use a folder at a site or an S3 prefix as a remote of the catalogue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from hibali.amounts import format_size
from hibali.errors import Exit, IncompleteError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location, check_writable, parse_location
from hibali_plugins.exchange.exchange import image_path, missing_image_error
from hibali_plugins.exchange.remotes.base import LARGEST_FILE, Offer, Reference, Upload, gather
from hibali_plugins.exchange.remotes.published import check_existing_file
from registry.catalogue_folder import DESCRIPTOR
from registry.images.record import ImageRecord
from transfers.engine.operation import synchronise
from transfers.engine.request import Request
from transfers.model.entry import Entry, Kind
from transfers.model.store import SmallFiles
from transfers.single_files import content_mark, open_small_files
from transfers.stores.open_store import open_store

_MOST_BYTES = 1024 * 1024 * 1024  # of contents at once, because all are checked before any is stored
_MOST_FILES = 1_000_000
_REPOSITORY = {b"HEAD", b"config"}  # in every bare git repository, but in no catalogue


class SiteRemote:
    """The Remote protocol (hibali_plugins.exchange.remotes.base), without history: only pins record the past."""

    def __init__(self, location: Location, *, on_event: Listener = ignore) -> None:
        self._location = location
        self._on_event = on_event
        self._files: SmallFiles | None = None

    def take_snapshot(self, *, accept_rewritten: bool = False, make: bool = False) -> SiteSnapshot:
        """Implement Remote; connect at the first call."""
        del accept_rewritten, make
        if self._files is None:
            self._files = open_small_files(self._location, on_event=self._on_event)
        return SiteSnapshot(self._files, self._location)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        if self._files is not None:
            self._files.close()
            self._files = None


class SiteSnapshot:
    """The Snapshot protocol. Other users may write there, so names that no catalogue writes are skipped.

    A version is offered as soon as its descriptor exists, which is created after the other files of that
    version.
    """

    def __init__(self, files: SmallFiles, location: Location) -> None:
        self._files = files
        self._location = location
        self._entries: dict[str, Entry] = {}

    def offers(self) -> Mapping[Reference, Offer]:
        """Implement Snapshot with one listing."""
        return gather(self._listed(), self._location.text)

    def _listed(self) -> Iterator[tuple[str, str]]:
        seen: set[bytes] = set()
        for entry in self._files.list():
            if entry.path in _REPOSITORY:
                seen.add(entry.path)
            if entry.size <= LARGEST_FILE and entry.path.isascii() and entry.path[:1] != b".":
                path = entry.path.decode("ascii")
                content = f"{content_mark(entry)}|{path}"
                self._entries[content] = entry
                if len(self._entries) > _MOST_FILES:
                    raise RefusedError(
                        "too-many", f"more than {_MOST_FILES} files", subject=self._location.text
                    )
                yield path, content
        if seen == _REPOSITORY:
            raise UsageError(
                "git-repository",
                "this location is a git repository, which can only be used by its git URL",
                subject=self._location.text,
                hint="Name it by its git URL: hibali pipelines remotes add NAME ssh://HOST/PATH --replace",
            )

    def read(self, wanted: Sequence[str]) -> Iterable[bytes]:
        """Implement Snapshot."""
        entries = [self._entries[content] for content in wanted]
        if sum(entry.size for entry in entries) > _MOST_BYTES:
            raise RefusedError(
                "too-large",
                f"the requested descriptors are larger than {format_size(_MOST_BYTES)} together",
                subject=self._location.text,
                hint="Fetch by name: hibali pipelines fetch NAME --from REMOTE",
            )
        return self._files.read(entries)

    def publish(self, uploads: Sequence[Upload], message: str) -> bool:
        """Implement Snapshot. After an interruption, the same uploads complete it."""
        del message
        check_writable(self._location)
        descriptors = {path: raw for path, name, raw in _contents(uploads) if name == DESCRIPTOR}
        other_files = {path: raw for path, name, raw in _contents(uploads) if name != DESCRIPTOR}
        try:
            with self._files.writing():
                existing = self._files.create(other_files)
                for upload in uploads:
                    for name in upload.files:
                        if _path(upload, name) in existing:
                            there = existing[_path(upload, name)]
                            check_existing_file(upload, name, there, self._location.text)
                return not self._files.create(descriptors)
        except TryLaterError as problem:
            if problem.code != "locked":
                raise
            return False


def _contents(uploads: Iterable[Upload]) -> Iterator[tuple[bytes, str, bytes]]:
    for upload in uploads:
        for name, content in upload.files.items():
            yield _path(upload, name), name, content


def _path(upload: Upload, name: str) -> bytes:
    return f"{upload.name}/{upload.version}/{name}".encode("ascii")


_CORRUPT = "corrupt"  # the code for a mismatch of the bucket's digest
Listening = Callable[[str], AbstractContextManager[Listener]]


def quiet_listener(title: str) -> AbstractContextManager[Listener]:
    """Ignore the events of a transfer."""
    del title
    return nullcontext(ignore)


class SiteImageStore:
    """The ImageStore protocol (hibali_plugins.exchange.exchange.ImageStore) at a site of any kind.

    Interrupted transfers resume inside the file, in both directions.
    """

    def __init__(self, location: Location, listening: Listening = quiet_listener) -> None:
        """Store the location; `listening` returns the listener for a transfer with a given title."""
        self._location = location
        self._listening = listening
        self.subject = location.text

    def present(self, records: Iterable[ImageRecord]) -> set[str]:
        """Implement ImageStore with one connection."""
        sizes = self._sizes(records)
        return {record.digest for record, size in sizes.items() if size == record.size}

    def put(self, record: ImageRecord, file: Path) -> None:
        """Implement ImageStore."""
        self._move("publish", record, _here(file.resolve()), self._place(record))

    def get(self, record: ImageRecord, target: Path) -> None:
        """Implement ImageStore."""
        size = self._sizes([record])[record]
        if size is None:
            raise missing_image_error(record, self.subject)
        if size != record.size:
            raise self._tampered(
                f"the file there has {size} bytes, but the published image has {record.size}"
            )
        self._move("get", record, self._place(record), _here(target))

    def _tampered(self, reason: str) -> RefusedError:
        return RefusedError(
            "image-tampered",
            reason,
            subject=self.subject,
            hint="Ask the publisher to publish it again. The download was discarded.",
        )

    def _sizes(self, records: Iterable[ImageRecord]) -> dict[ImageRecord, int | None]:
        store = open_store(self._location)
        try:
            found = {record: store.stat(image_path(record).encode("ascii")) for record in records}
        finally:
            store.close()
        return {
            record: entry.size if entry is not None and entry.kind is Kind.FILE else None
            for record, entry in found.items()
        }

    def _place(self, record: ImageRecord) -> Location:
        place = self._location
        for name in image_path(record).split("/"):
            place = place.child(name.encode("ascii"))
        return place

    def _move(self, operation: str, record: ImageRecord, source: Location, target: Location) -> None:
        with self._listening(f"{operation} image {record.hex[:12]} {source.text} {target.text}") as on_event:
            try:
                receipt = synchronise(Request(operation, source, target), on_event)
            except NotFoundError:
                if operation == "get":
                    raise missing_image_error(record, self.subject) from None
                raise
        if receipt.exit is not Exit.DONE:
            reasons = "; ".join(failed.message for failed in receipt.failures[:3])
            if operation == "get" and any(failed.code == _CORRUPT for failed in receipt.failures):
                raise self._tampered(f"the file there is not the published image: {reasons}")
            raise IncompleteError(
                "image-not-moved",
                f"the image was not transferred completely: {reasons}",
                subject=self.subject,
            )


def _here(file: Path) -> Location:
    found = parse_location(os.fsdecode(file), {}, b"/", literal=True)
    assert found is not None, "an absolute path names no site"
    return found
