"""List the files of a record of Zenodo (developers.zenodo.org, Records; its files have an MD5).

The DOI of all versions redirects to the newest one.
"""

from __future__ import annotations

from urllib.parse import quote_from_bytes

from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.files import (
    ArchivedFile,
    Listing,
    checksums,
    path_in,
    text_in,
    time_in,
)
from hibali_plugins.archives.settings import Place


def list_files(client: ArchiveClient, place: Place) -> Listing:
    """Return the files of a record."""
    record = client.record(f"/api/records/{place.identifier}")
    number = str(record.get("id", ""))
    files = record.get("files")
    if isinstance(files, dict):  # the form of InvenioRDM, on which Zenodo is built
        entries = files.get("entries")  # a restricted record has neither these nor their count
        stated = client.size_of(files, "count") if entries else 0
        files = list(entries.values()) if isinstance(entries, dict) else []
        if len(files) != stated:
            raise client.bad_answer(f"it has {len(files)} of the {stated} files that it states")
    if not number.isdigit() or not isinstance(files, list):
        raise client.bad_answer("it is no record")
    listing = Listing(number, text_in(record, "doi") or text_in(record, "pids", "doi", "identifier"))
    made = time_in(record, "created")
    for file in files:
        # a second form, that of one's own depositions, has also come from here in 2023
        is_own = not text_in(file, "key")
        path = path_in(text_in(file, "filename" if is_own else "key"))
        algorithm, _, digits = text_in(file, "checksum").rpartition(":")
        address = f"{client.origin}/api/records/{number}/files/{quote_from_bytes(path)}/content"
        size = client.size_of(file, "filesize" if is_own else "size")
        sums = checksums([(algorithm or "md5", digits)])
        listing.add(ArchivedFile(path, size, address, made, **sums), client.subject)
    return listing
