"""List the files of an article of Figshare (docs.figshare.com, API v2: articles, versions, files).

A DOI without `.vN` stands for the newest version. Folders are in `folder_structure`, by the numbers of the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.files import (
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

_PAGE = 1000
_MOST_PAGES = 1000


def list_files(client: ArchiveClient, place: Place) -> Listing:
    """Return the files of an article."""
    article = f"/v2/articles/{place.identifier}"
    record = client.record(f"{article}/versions/{place.version}" if place.version else article)
    version = record.get("version")
    if not isinstance(version, int):
        raise client.bad_answer("it is no article")
    folders = record.get("folder_structure")
    listing, made = Listing(str(version), text_in(record, "doi")), time_in(record, "published_date")
    files = list(_files(client, f"{article}/versions/{version}/files"))
    paths = [path_in(text_in(folders, str(value_in(file, "id"))), text_in(file, "name")) for file in files]
    count = Counter(paths)
    for file, path in zip(files, paths, strict=True):
        if value_in(file, "is_link_only"):
            why = "it is only a link to another place"
            listing.leave_out(path, "kept-elsewhere", why, size_or_none(file, "size"))
            continue
        size = client.size_of(file)
        if count[path] > 1:  # Figshare accepts that
            listing.leave_out(path, "unsafe-name", "the dataset has several files of this name", size)
            continue
        # the checksum that the depositor gave, if there is one, is another one only if the upload was damaged
        sums = checksums([("md5", text_in(file, name)) for name in ("computed_md5", "supplied_md5")])
        listing.add(ArchivedFile(path, size, text_in(file, "download_url"), made, **sums), client.subject)
    return listing


def _files(client: ArchiveClient, path: str) -> Iterator[Any]:
    for page in range(1, _MOST_PAGES + 1):
        files = client.rows(path, page=page, page_size=_PAGE)
        yield from files
        if not files:  # a server may have smaller pages than it was asked for
            return
    raise client.bad_answer(f"it has more than {_MOST_PAGES} pages")
