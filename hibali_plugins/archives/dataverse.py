"""List the files of a dataset in a Dataverse (guides.dataverse.org, Native API: List Files in a Dataset; Data Access API).

Tables that Dataverse converted are read as they were deposited: their checksum is that of the original.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.files import (
    MOST_FILES,
    ArchivedFile,
    Listing,
    checksums,
    path_in,
    size_or_none,
    text_in,
    time_in,
    value_in,
)
from hibali_plugins.archives.settings import Place

_PAGE = 5000
_ORDERS = ("NameAZ", "NameZA", "Newest", "Size")


def list_files(client: ArchiveClient, place: Place) -> Listing:
    """Return the files of a published version, the newest one if none is named."""
    versions = "/api/datasets/:persistentId/versions/"
    wanted = f"{versions}{place.version or ':latest-published'}"
    data = value_in(client.record(wanted, persistentId=place.identifier, excludeFiles="true"), "data")
    number, minor = value_in(data, "versionNumber"), value_in(data, "versionMinorNumber")
    if not isinstance(number, int) or not isinstance(minor, int):
        raise client.bad_answer("it is no published version of a dataset")
    listing = Listing(f"{number}.{minor}")
    made = time_in(data, "releaseTime") or time_in(data, "createTime")  # that of a file has only its day
    files = value_in(data, "files")  # one before 6.1 ignores excludeFiles
    if not isinstance(files, list):
        files = _files(client, f"{versions}{number}.{minor}/files", place.identifier)
    for file in files:
        _add(client, listing, file, made)
    return listing


def _files(client: ArchiveClient, path: str, identifier: str) -> Iterable[Any]:
    """Return the files of a version, in pages. Their order is that of their names without the folders.

    Files of the same name may be on two pages, or on none; another order has these on other pages.
    """
    found: dict[Any, Any] = {}
    total = 0
    for order in _ORDERS:
        for offset in count(0, _PAGE):
            answer = client.record(
                path, persistentId=identifier, limit=_PAGE, offset=offset, orderCriteria=order
            )
            page = answer.get("data")
            if not isinstance(page, list):
                raise client.bad_answer("it is no list of files")
            found |= {value_in(file, "dataFile", "id"): file for file in page}
            total = client.size_of(answer, "totalCount")
            if total > MOST_FILES:
                raise client.bad_answer(f"it states {total} files")
            if offset + len(page) >= total or not page:
                break
        if len(found) == total:
            return found.values()
    raise client.bad_answer(f"it has {len(found)} of the {total} files that it states")


def _add(client: ArchiveClient, listing: Listing, file: Any, made: int) -> None:
    content = value_in(file, "dataFile")
    converted = bool(text_in(content, "originalFileFormat"))
    name = (converted and text_in(content, "originalFileName")) or text_in(content, "filename")
    path = path_in(text_in(file, "directoryLabel"), name)
    number, size = (
        value_in(content, "id"),
        size_or_none(content, "originalFileSize" if converted else "filesize"),
    )
    if value_in(file, "restricted"):
        listing.leave_out(path, "denied", "the archive gives it only to people with a permission", size)
        return
    if size is None:
        listing.leave_out(path, "no-size", "the archive does not report its size", None)
        return
    if not isinstance(number, int):
        raise client.bad_answer("a file has no id")
    address = f"{client.origin}{client.base}/api/access/datafile/{number}" + (
        "?format=original" if converted else ""
    )
    sums = checksums(
        [
            ("md5", text_in(content, "md5")),
            (text_in(content, "checksum", "type"), text_in(content, "checksum", "value")),
        ]
    )
    listing.add(ArchivedFile(path, size, address, made, **sums), client.subject)
