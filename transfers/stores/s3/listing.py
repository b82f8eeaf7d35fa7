"""List the objects below a prefix, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from transfers.stores.s3.requests import (
    Requests,
    children,
    cut_rows,
    fields,
    key_bytes,
    name_of,
    parse,
    raw_key,
    text,
)
from transfers.stores.server.keys import Listed, violation

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


_COLUMNS = (b"Key", b"Size", b"ETag", b"LastModified")
_CLASS = b"StorageClass"
_ARCHIVES = frozenset(
    {"GLACIER", "DEEP_ARCHIVE"}
)  # classes whose objects must be restored before they can be read
_RESTORE_STATUS = {"x-amz-optional-object-attributes": "RestoreStatus"}
_PAGE = 1000  # the protocol's own limit
_MOST_PAGE = 16 * 1024 * 1024  # 1000 keys of 1024 bytes, each written as %XX, have a third of this


def is_archived(headers: Mapping[str, str]) -> bool:
    """Return whether the answer to HEAD says that the object is in an archive, and not restored."""
    in_archive = headers.get("x-amz-storage-class") in _ARCHIVES or "x-amz-archive-status" in headers
    return in_archive and "expiry-date" not in headers.get("x-amz-restore", "")


def pages(
    requests: Requests, prefix: bytes, *, shallow: bool = False, at_most: int = _PAGE
) -> Iterator[list[Listed]]:
    """List keys below `prefix`, relative to it (ListObjectsV2); with `shallow` only to the first slash.

    Raises `IncompleteError("listing-violation")` if a page contradicts itself (S3).
    """
    query = {"list-type": "2", "encoding-type": "url", "max-keys": str(at_most), "prefix": prefix.decode()}
    if shallow:
        query["delimiter"] = "/"
    seen: set[str] = set()

    def page(token: str = "") -> bytes:
        further = {"continuation-token": token} if token else {}
        answer = requests.request("GET", query={**query, **further}, headers=_RESTORE_STATUS, most=_MOST_PAGE)
        return answer.body

    # The server prepares the next page while the caller uses this one.
    with ThreadPoolExecutor(1, thread_name_prefix="page") as ahead:
        coming = ahead.submit(page)
        while True:
            body = coming.result()
            columns = (*_COLUMNS, _CLASS) if _CLASS in body[:4096] else _COLUMNS
            rows, document = cut_rows(body, b"Contents", columns)
            root = parse(document, requests.subject)
            if name_of(root) != "ListBucketResult":
                raise violation(requests.subject, "the response is not a listing")
            result = fields(root)
            more = result.get("IsTruncated") == "true"
            token = result.get("NextContinuationToken", "")
            if more and (not token or token in seen):
                raise violation(requests.subject, "it announces a next page without a usable token")
            seen.add(token)
            if more and at_most == _PAGE:
                coming = ahead.submit(page, token)
            encoded = result.get("EncodingType") == "url"
            found = _from_rows(rows, prefix, requests.subject, encoded=encoded)
            found += _entries(root, prefix, requests.subject, encoded=encoded)
            count = result.get("KeyCount", "")
            if count.isdigit() and int(count) != len(found):
                raise violation(requests.subject, f"{len(found)} names arrived, but {count} were announced")
            yield found
            if not more:
                return
            if at_most != _PAGE:  # the caller wants only a few keys
                coming = ahead.submit(page, token)


def _from_rows(
    rows: Iterable[tuple[bytes, ...]], prefix: bytes, subject: str, *, encoded: bool
) -> list[Listed]:
    found = []
    start = len(prefix)
    for row in rows:
        key, size, etag, modified, *storage = row
        key = raw_key(key, encoded=encoded)
        if not key.startswith(prefix) or not size.isdigit():
            raise violation(subject, "it contains an unrequested name")
        archived = bool(storage) and storage[0].decode("latin-1") in _ARCHIVES
        found.append(
            Listed(key[start:], int(size), etag.decode("latin-1"), modified.decode("latin-1"), archived)
        )
    return found


def _entries(root: Element, prefix: bytes, subject: str, *, encoded: bool) -> Iterator[Listed]:
    for element in root:
        name = name_of(element)
        if name == "Contents":
            result = fields(element)
            key = key_bytes(result.get("Key", ""), encoded=encoded)
            size = result.get("Size", "")
            if not key.startswith(prefix) or not size.isdigit():
                raise violation(subject, "it contains an unrequested name")
            etag = result.get("ETag", "").strip('"')
            restored = any(text(each, "RestoreExpiryDate") for each in children(element, "RestoreStatus"))
            archived = result.get("StorageClass") in _ARCHIVES and not restored
            yield Listed(key[len(prefix) :], int(size), etag, result.get("LastModified", ""), archived)
        elif name == "CommonPrefixes":
            key = key_bytes(text(element, "Prefix"), encoded=encoded)
            if not key.startswith(prefix) or not key.endswith(b"/"):
                raise violation(subject, "it contains an unrequested name")
            yield Listed(key[len(prefix) :], -1, "", "")
