"""List the files of a dataset in a Dataverse (guides.dataverse.org, Native API: List Files in a Dataset; Data Access API).

Tables that Dataverse converted are read as they were deposited: their checksum is that of the original.
"""

from __future__ import annotations

from typing import Any

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


def list_files(client: ArchiveClient, place: Place) -> Listing:
    """Return the files of a published version, the newest one if none is named."""
    wanted = place.version or ":latest-published"
    answer = client.record(
        f"/api/datasets/:persistentId/versions/{wanted}", persistentId=place.identifier, excludeFiles="false"
    )
    data = value_in(answer, "data")
    number, minor = value_in(data, "versionNumber"), value_in(data, "versionMinorNumber")
    files = value_in(data, "files")
    if not isinstance(number, int) or not isinstance(minor, int) or not isinstance(files, list):
        raise client.bad_answer("it is no published version of a dataset")
    listing = Listing(f"{number}.{minor}")
    made = time_in(data, "releaseTime") or time_in(data, "createTime")  # that of a file has only its day
    for file in files:
        _add(client, listing, file, made)
    return listing


def _add(client: ArchiveClient, listing: Listing, file: Any, made: int) -> None:
    content = value_in(file, "dataFile")
    converted = bool(text_in(content, "originalFileFormat"))
    name = (converted and text_in(content, "originalFileName")) or text_in(content, "filename")
    path = path_in(text_in(file, "directoryLabel"), name)
    if value_in(file, "restricted"):
        listing.leave_out(path, "denied", "the archive gives it only to people with a permission")
        return
    number = value_in(content, "id")
    try:
        size = size_in(content, "originalFileSize" if converted else "filesize")
    except ValueError:
        listing.leave_out(path, "no-size", "the archive does not report its size")
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
