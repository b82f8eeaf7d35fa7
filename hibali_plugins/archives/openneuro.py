"""List the files of a snapshot of a dataset in OpenNeuro (docs.openneuro.org, API; its server 4.51, resolvers/snapshots.ts and datalad/files.ts).

A file that git-annex holds has its key as `id`, which names a checksum; any other has the id of its git blob, which is one.
"""

from __future__ import annotations

import re
from typing import Any

from hibali.errors import AccessError, NotFoundError, TryLaterError
from hibali.http.rest import Call
from hibali_plugins.archives.client import ArchiveClient, doi_hint
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

_MOST_ANSWER = 256 * 1024 * 1024  # all files are in one answer, with some 400 bytes for each
_FILES = "{ id tag created files(recursive: true) { id filename size annexed directory urls } }"
_ONE = "query ($id: ID!, $tag: String!) { snapshot(datasetId: $id, tag: $tag) " + _FILES + " }"
_NEWEST = "query ($id: ID!) { dataset(id: $id) { latestSnapshot " + _FILES + " } }"
_KEY = re.compile(r"(?P<name>[A-Z0-9]+?)E?-s(?P<size>[0-9]{1,18})--(?P<digits>[0-9a-f]+)(\..*)?")
_EMPTY = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # of a blob without content
DOI = "10.18112/openneuro.{}.v{}"


def list_files(client: ArchiveClient, place: Place) -> Listing:
    """Return the files of a snapshot, the newest one if none is named."""
    if place.version:
        snapshot = _query(client, _ONE, id=place.identifier, tag=place.version).get("snapshot")
    else:
        snapshot = value_in(_query(client, _NEWEST, id=place.identifier), "dataset", "latestSnapshot")
    tag, files = text_in(snapshot, "tag"), value_in(snapshot, "files")
    if not tag or not isinstance(files, list):
        raise client.bad_answer("it is no snapshot")
    listing = Listing(tag, DOI.format(place.identifier, tag))
    made = time_in(snapshot, "created")
    for file in files:
        _add(client, listing, file, made)
    return listing


def _query(client: ArchiveClient, query: str, **variables: str) -> dict[str, Any]:
    """Return the data of an answer of GraphQL, whose errors have the status 200."""
    content = {"query": query, "variables": variables}
    call = Call.with_json("POST", "/crn/graphql", content, most=_MOST_ANSWER)

    def ask() -> dict[str, Any]:
        answer = client.record_of(client.send(call))
        errors, data = answer.get("errors"), answer.get("data")
        if errors:
            raise _error_of(
                client.subject, text_in(errors[0] if isinstance(errors, list) else None, "message")
            )
        if not isinstance(data, dict):
            raise client.bad_answer("it has no data")
        return data

    return client.tried(ask)


def _error_of(subject: str, message: str) -> AccessError | NotFoundError | TryLaterError:
    """Return the error that a message means, without its text, which may be that of an attacker."""
    if "do not have access" in message:
        return AccessError(
            "denied",
            "the archive denied access",
            subject=subject,
            hint="Only public datasets are read: drafts and embargoed ones need the client of the archive.",
        )
    if "does not exist" in message or "has been deleted" in message or message == "Not Found":
        return NotFoundError(
            "no-such-dataset",
            "the archive has no public dataset with this DOI, or no longer",
            subject=subject,
            hint=doi_hint(subject),
        )
    return TryLaterError(
        "bad-answer",
        "the archive could not list the dataset",
        subject=subject,
        hint="Run the same command again later: it lists a large dataset in several attempts.",
    )


def _add(client: ArchiveClient, listing: Listing, file: Any, made: int) -> None:
    path, number = path_in(text_in(file, "filename")), text_in(file, "id")
    urls = value_in(file, "urls")
    address = urls[0] if isinstance(urls, list) and urls and isinstance(urls[0], str) else ""
    if value_in(file, "directory"):
        raise client.bad_answer("it has a folder among the files")
    try:
        size = size_in(file, "size")
    except ValueError:
        listing.leave_out(path, "no-size", "the archive does not report its size", None)
        return
    if not value_in(file, "annexed"):
        if not size and number != _EMPTY:
            listing.leave_out(path, "kept-elsewhere", "it is only a link to another file", size)
            return
        sums = checksums([("gitsha1", number)])
    else:
        key = _KEY.fullmatch(number)
        if key is not None and int(key["size"]) != size:
            raise client.bad_answer("a file has another size than its key")
        sums = checksums([(key["name"], key["digits"])]) if key is not None else {}
    listing.add(ArchivedFile(path, size, address, made, **sums), client.subject)
