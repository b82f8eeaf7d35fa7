"""Contents of images at SITE:PATH, brought there and from there by the same `synchronise` that moves data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from hibali.errors import Exit, IncompleteError, NotFoundError, RefusedError
from hibali.events import Listener, ignore
from hibali.locations import Location, parse_location
from registry.image_record import ImageRecord
from registry.image_shelf import not_there, shelf_place
from transfers.entry import Kind
from transfers.places import open_store
from transfers.request import Request
from transfers.synchronise import synchronise

_CORRUPT = "corrupt"  # a bucket's own record of digests tells before ours does
Listening = Callable[[str], AbstractContextManager[Listener]]


def in_silence(title: str) -> AbstractContextManager[Listener]:
    """Nobody is told how it goes."""
    del title
    return nullcontext(ignore)


class SiteShelf:
    """The ImageShelf protocol (registry.image_shelf.ImageShelf) at a site of any kind.

    What was interrupted goes on inside the file, in both directions, as every transfer does.
    """

    def __init__(self, location: Location, listening: Listening = in_silence) -> None:
        """`listening` gives, for the title of a transfer, whom to tell how it goes."""
        self._location = location
        self._listening = listening
        self.about = location.text

    def present(self, records: Iterable[ImageRecord]) -> set[str]:
        """See ImageShelf; one connection for all."""
        sizes = self._sizes(records)
        return {record.digest for record, size in sizes.items() if size == record.size}

    def put(self, record: ImageRecord, file: Path) -> None:
        """See ImageShelf."""
        self._move("publish", record, _here(file.resolve()), self._place(record))

    def get(self, record: ImageRecord, target: Path) -> None:
        """See ImageShelf."""
        size = self._sizes([record])[record]
        if size is None:
            raise not_there(record, self.about)
        if size != record.size:
            raise self._tampered(f"what lies there has {size} bytes, but {record.size} were published")
        self._move("get", record, self._place(record), _here(target))

    def _tampered(self, reason: str) -> RefusedError:
        return RefusedError(
            "image-tampered",
            reason,
            about=self.about,
            hint="Ask whoever published it to publish it again; nothing was kept.",
        )

    def _sizes(self, records: Iterable[ImageRecord]) -> dict[ImageRecord, int | None]:
        store = open_store(self._location)
        try:
            found = {record: store.stat(shelf_place(record).encode("ascii")) for record in records}
        finally:
            store.close()
        return {
            record: entry.size if entry is not None and entry.kind is Kind.FILE else None
            for record, entry in found.items()
        }

    def _place(self, record: ImageRecord) -> Location:
        place = self._location
        for name in shelf_place(record).split("/"):
            place = place.child(name.encode("ascii"))
        return place

    def _move(self, operation: str, record: ImageRecord, source: Location, target: Location) -> None:
        with self._listening(f"{operation} image {record.hex[:12]} {source.text} {target.text}") as tell:
            try:
                receipt = synchronise(Request(operation, source, target), tell)
            except NotFoundError:
                if operation == "get":
                    raise not_there(record, self.about) from None
                raise
        if receipt.exit is not Exit.DONE:
            said = "; ".join(failed.message for failed in receipt.failures[:3])
            if operation == "get" and any(failed.code == _CORRUPT for failed in receipt.failures):
                raise self._tampered(f"what lies there is not what was put there: {said}")
            raise IncompleteError(
                "image-not-moved", f"the image did not arrive whole: {said}", about=self.about
            )


def _here(file: Path) -> Location:
    found = parse_location(os.fsdecode(file), {}, b"/", literal=True)
    assert found is not None, "an absolute path names no site"
    return found
