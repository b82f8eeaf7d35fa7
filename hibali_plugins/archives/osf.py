"""List the files of a project or registration of OSF (developer.osf.io: nodes, registrations, files).

Only its own storage is read, and no component. A project can change, a registration cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hibali.errors import NotFoundError
from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.files import (
    ArchivedFile,
    Listing,
    checksums,
    path_in,
    size_in,
    text_in,
    time_in,
    value_in,
)
from hibali_plugins.archives.settings import Place

_MOST_FOLDERS = 100_000
_PAGE = 100  # the largest; people without a login have 100 requests an hour
_NEXT = ("links", "next")
_CHILDREN = ("relationships", "files", "links", "related", "href")


def list_files(client: ArchiveClient, place: Place) -> Listing:
    """Return the files in the storage of a project, or of a registration."""
    listing = Listing("")
    for item in _items(client, place):
        path = path_in(text_in(item, "attributes", "materialized_path"))
        try:
            size = size_in(item, "attributes", "size")
        except ValueError:
            listing.leave_out(path, "no-size", "the archive does not report its size", None)
            continue
        hashes = value_in(item, "attributes", "extra", "hashes")
        sums = checksums([("sha256", text_in(hashes, "sha256")), ("md5", text_in(hashes, "md5"))])
        made = time_in(item, "attributes", "date_modified")
        listing.add(
            ArchivedFile(path, size, text_in(item, "links", "download"), made, **sums), client.subject
        )
    return listing


def _items(client: ArchiveClient, place: Place) -> Iterator[Any]:
    """Yield the files of all folders."""
    try:
        client.record(f"/v2/nodes/{place.identifier}/")
        first = f"/v2/nodes/{place.identifier}/files/osfstorage/"
    except NotFoundError:
        first = f"/v2/registrations/{place.identifier}/files/osfstorage/"
    waiting, seen = [first], {first}
    for count, folder in enumerate(waiting):
        if count >= _MOST_FOLDERS:
            raise client.bad_answer(f"it has more than {_MOST_FOLDERS} folders")
        for page in client.pages(folder, _NEXT, **{"page[size]": _PAGE}):
            items = page.get("data")
            if not isinstance(items, list):
                raise client.bad_answer("it is no list of files")
            for item in items:
                if text_in(item, "attributes", "kind") == "folder":
                    inside = client.path_of(value_in(item, *_CHILDREN))
                    if inside in seen:
                        raise client.bad_answer("a folder in it contains itself")
                    seen.add(inside)
                    waiting.append(inside)
                else:
                    yield item
