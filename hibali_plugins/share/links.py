"""Share files by links, which need no account, and remember when each ends. The links themselves are never stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from hibali.errors import NotFoundError, RefusedError
from hibali.events import Listener
from hibali.ledger import Journal, ledger_folder, new_identifier, now, read_records
from hibali.locations import Location, listing_hint
from hibali.plugins import find
from hibali_plugins.share.presign import Presigned
from transfers.model.entry import Kind
from transfers.model.store import StoreView
from transfers.stores.open_store import open_store


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """A link that was made: to which place, until when, and whether the file could be read with it alone."""

    place: str
    ends: datetime
    proven: bool


def make_link(location: Location, seconds: int, on_event: Listener) -> Presigned:
    """Make a link to a file, and record its end.

    Args:
        location: The file.
        seconds: How long it is valid.
        on_event: Gets notes.

    Raises:
        NotFoundError: There is no such file.
        RefusedError: It is a folder, or the site has no such links.
        UsageError: The site does not allow so long a time.
    """
    store = open_store(location, on_event=on_event)
    try:
        entry = store.stat()
        if entry is None:
            message, hint = "no file with that name exists", listing_hint(location.text)
            raise NotFoundError("no-such-place", message, subject=location.text, hint=hint)
        presign = None if isinstance(store, StoreView) else find("hibali.links", store.facts.kind)
        if presign is None:
            raise RefusedError(
                "no-links",
                f"files at {location.site.name} cannot be shared by a link: only those of S3 can",
                subject=location.text,
                hint="Copy the file to a bucket, and share it there.",
            )
        if entry.kind is not Kind.FILE:
            message = "a link is to one file, and this is a folder"
            raise RefusedError("not-a-file", message, subject=location.text)
        link: Presigned = presign(store, entry, seconds)
    finally:
        store.close()
    journal = Journal(ledger_folder("links") / f"{new_identifier()}.jsonl")
    try:
        record = {"place": location.text, "at": now(), "proven": link.proven}
        journal.append({**record, "ends": link.ends.isoformat()}, durable=True)
    finally:
        journal.close()
    return link


def read_links(*, ended: bool = False) -> Iterator[LinkRecord]:
    """Yield the links that this machine made and that are valid, oldest first; with `ended` also the others."""
    moment = datetime.now(UTC)
    for path in sorted(ledger_folder("links").glob("*.jsonl")):
        for each in read_records(path):
            found = LinkRecord(
                str(each["place"]),
                datetime.fromisoformat(each["ends"]),
                bool(each["proven"]),
            )
            if ended or found.ends > moment:
                yield found
