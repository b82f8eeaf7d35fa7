"""List, query, read and write the objects of a bucket or dataset."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

from hibali.errors import IncompleteError
from hibali.http.client import Bytes, Response
from hibali.http.errors import not_partial, truncated
from hibali_plugins.ebrains.parts import MOST_SINGLE, send_in_parts
from hibali_plugins.ebrains.requests import DataProxy
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind
from transfers.model.identities import identity_of_url
from transfers.model.units import Problem
from transfers.remote.shared_memory import allocate_buffer
from transfers.stores.server.files import LIST_SECONDS, Files
from transfers.stores.server.keys import Listed, violation
from transfers.stores.server.reading import Got, changed
from transfers.stores.server.records import Found
from transfers.stores.server.streaming import Refused

_PAGE = 1000
_MOST_PAGE = 16 * 1024 * 1024  # 1000 keys of 1024 bytes, each character escaped, have less than half of this
_READ_ATTEMPTS = 6  # of one range; each goes on where the last one ended
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18})")
_EMPTY_RANGE = re.compile(r"bytes \*/([0-9]{1,18})")
_PLAIN = re.compile(r"[!#-\[\]-~]{1,100}")  # as the manifest stores tags
_KNOWN_VERSIONS = 256
MOST_BYTES = 5 * 1024**4  # of an object in S3
_TOO_LARGE = Problem("too-large", "the service takes objects of at most 5 TiB")
_AFTER_SLASH = b"0"  # the character after "/"


def time_of(modified: str) -> int:
    """Convert last_modified of a listing to nanoseconds since the epoch, 0 if it is no time; UTC without a zone."""
    try:
        found = datetime.fromisoformat(modified)
        return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000_000) * 1000
    except (ValueError, OverflowError):
        return 0


def found_of(listed: Listed) -> Found:
    """Return the properties of a listed object."""
    return Found(Kind.FILE, listed.size, time_of(listed.modified), listed.etag)


def _listed_of(record: Any, prefix: bytes) -> Listed | None:
    """Return one row of a listing, relative to `prefix`; None if it is malformed or was not requested.

    The tag of a version is its time and `hash`. What `hash` is, the service does not say: hibali only compares
    it with that of another listing.
    """
    if not isinstance(record, dict):
        return None
    folder = record.get("subdir")
    name, size = (folder, -1) if folder is not None else (record.get("name"), record.get("bytes"))
    if not isinstance(name, str) or type(size) is not int or (size < 0) != (folder is not None):
        return None
    try:
        key = name.encode("utf-8")
    except UnicodeEncodeError:
        return None
    if not key.startswith(prefix) or (folder is not None and not key.endswith(b"/")):
        return None
    if folder is not None:
        return Listed(key[len(prefix) :], -1, "", "")
    modified, digest = (
        value if isinstance(value, str) and _PLAIN.fullmatch(value) else ""
        for value in (record.get("last_modified"), record.get("hash"))
    )
    tag = " ".join(filter(None, (modified, digest)))
    return Listed(key[len(prefix) :], size, tag, modified)


class _Version(NamedTuple):
    """The version of an object that was read: its listed tag, and the ETag or time that its host sent."""

    tag: str
    sent: str


class Objects(Files):
    """Requests for the objects of one bucket or dataset. Paths are whole keys."""

    def __init__(self, proxy: DataProxy) -> None:
        self.proxy = proxy
        self.subject = proxy.subject
        self._versions: dict[bytes, _Version] = {}

    @property
    def address(self) -> str:
        """See Files."""
        return self.proxy.address

    def identity(self, path: bytes) -> Identity:
        """See Files."""
        return identity_of_url(self.address, path)

    def close(self) -> None:
        """See Files."""
        self.proxy.close()

    def pages(self, prefix: bytes, *, shallow: bool = False) -> Iterator[list[Listed]]:
        """List keys below `prefix`, relative to it; with `shallow` only to the first slash, folders once.

        A page may be shorter than requested, so only an empty one is the end. Raises
        `IncompleteError("listing-violation")` if a page contradicts itself (S3).
        """
        folders: set[bytes] = set()
        markers: set[bytes] = set()
        marker = b""
        # The service prepares the next page while the caller uses this one.
        with ThreadPoolExecutor(1, thread_name_prefix="page") as ahead:
            coming = ahead.submit(self._page, prefix, marker, _PAGE, shallow=shallow)
            while rows := coming.result():
                marker = _next_marker(rows, prefix, shallow=shallow)
                if marker in markers:
                    raise violation(self.subject, "its pages repeat")
                markers.add(marker)
                coming = ahead.submit(self._page, prefix, marker, _PAGE, shallow=shallow)
                yield list(_first_level(rows, folders)) if shallow else rows

    def _page(self, prefix: bytes, marker: bytes, limit: int, *, shallow: bool) -> list[Listed]:
        query = {"limit": b"%d" % limit, "marker": marker, "prefix": prefix, "delimiter": b"/" * shallow}
        query = {name: value for name, value in query.items() if value}
        found = self.proxy.record_of(self.proxy.api("GET", query=query, most=_MOST_PAGE)).get("objects")
        if not isinstance(found, list):
            raise violation(self.subject, "the answer is not a listing")
        rows = [row for record in found if (row := _listed_of(record, prefix)) is not None]
        if len(rows) != len(found):
            raise violation(self.subject, "it contains a malformed or unrequested name")
        return rows

    def find(self, key: bytes) -> Listed | None:
        """Return the row of one object, None if it is missing."""
        for row in self._page(key, b"", 1, shallow=False):  # sorted by name, it is the first with this prefix
            return row._replace(path=key) if not row.path else None
        return None

    def has_below(self, key: bytes) -> bool:
        """Return whether there are objects below a folder, or with b"" in the bucket, which must exist."""
        return bool(self._page(key + b"/" if key else b"", b"", 1, shallow=False))

    def stat(self, key: bytes) -> Found | None:
        """Return the properties of one object, None if it is missing."""
        listed = self.find(key)
        return None if listed is None else found_of(listed)

    def get(
        self,
        key: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = _MOST_PAGE,
    ) -> Got:
        """Read an object of `most` bytes, or `length` > 0 bytes from `offset`; with `etag` only that version.

        The result has the tag of that version, else the ETag that its host sent. Raises
        `IncompleteError("source-changed")`.
        """
        wanted = most if length is None else length
        buffer = memoryview(allocate_buffer(wanted)) if wanted else memoryview(b"")
        reading = _Reading(self.proxy, key, offset, wanted)

        def put(piece: bytes) -> None:
            buffer[reading.received : reading.received + len(piece)] = piece

        reading.read(put, keep=length is not None)
        if etag and not self._is_version(key, etag, reading):
            raise changed(self.subject)
        return Got(buffer[: reading.received], etag or reading.sent, reading.total, reading.etag)

    def _is_version(self, key: bytes, tag: str, reading: _Reading) -> bool:
        """Return whether the bytes that were read are those of a listed version.

        The host of the objects does not know the tag. Unless its ETag is the `hash` of the listing, the object is
        listed again after it was read.
        """
        version = _Version(tag, reading.sent)
        known = self._versions.get(key)
        if known is not None and known.tag == tag:
            return known == version
        if not reading.etag or reading.etag != tag.partition(" ")[2]:
            now = self.find(key)
            if now is None or (now.etag, now.size) != (tag, reading.total):
                return False
        if len(self._versions) >= _KNOWN_VERSIONS:
            self._versions.clear()
        self._versions[key] = version
        return True

    def read_small(self, key: bytes, most: int) -> bytes | None:
        """Return a small object of at most `most` bytes, None if it is missing or larger."""
        response = self.request("GET", key, headers={"Range": f"bytes=0-{most - 1}"}, accept=(404, 416))
        return None if response.status == 404 else response.body if response.status < 300 else b""

    def read(self, key: bytes, offset: int, length: int) -> bytes:
        """See Files."""
        return bytes(self.get(key, offset=offset, length=length).content)

    def children(self, folder: bytes, *, seconds: float = LIST_SECONDS) -> list[tuple[bytes, Found]]:
        """See Files."""
        del seconds
        prefix = folder + b"/" if folder else b""
        rows = [row for page in self.pages(prefix, shallow=True) for row in page if row.path]
        return self._in_order(
            folder,
            [
                (row.path.removesuffix(b"/"), Found(Kind.FOLDER))
                if row.size < 0
                else (row.path, found_of(row))
                for row in rows
            ],
        )

    def digest(self, key: bytes, expected: int) -> tuple[str, Found | None]:
        """See Files. A listing may be late: then the properties have no tag, so that nothing is recorded."""
        summed = hashlib.sha256()
        reading = _Reading(self.proxy, key, 0, expected)
        try:
            reading.read(summed.update)
        except IncompleteError as problem:
            if problem.code != "source-changed":  # it has another size
                raise
            return "", None
        if reading.total != expected:
            return "", None
        return summed.hexdigest(), self.stat(key) or Found(Kind.FILE, expected)

    def put(self, key: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """Write a whole object, replacing an existing one."""
        del seconds
        self.proxy.request_object("PUT", key, body=content)

    def check_entry(self, entry: Entry) -> None:
        """See Files."""
        if entry.size > MOST_BYTES:
            raise Refused(_TOO_LARGE)

    def send(
        self,
        key: bytes,
        pieces: Iterator[Bytes],
        entry: Entry,
        before_commit: Callable[[], None],
        part_folders: Sequence[bytes] = (),
    ) -> None:
        """See Files.

        Nothing is sent before the first piece exists: SeaweedFS keeps an empty object of a request that ends
        before its first byte.
        """
        del part_folders
        checked = _checked_last(pieces, before_commit)
        large = entry.size > min(self.proxy.settings.multipart, MOST_SINGLE)
        if large and send_in_parts(self.proxy, key, checked, entry.size):
            return
        first = next(checked, b"")
        self.proxy.upload_object(key, chain((first,), checked), entry.size)

    def delete(self, key: bytes) -> None:
        """Remove an object; a missing one is no error."""
        self.proxy.delete(key)

    def make_folder(self, key: bytes) -> None:
        """Do nothing: folders exist only as parts of keys."""

    def remove_folder(self, key: bytes) -> None:
        """Do nothing: folders exist only as parts of keys."""

    def remove_empty(self, path: bytes) -> Problem | None:
        """Remove the empty object for a folder, if there is one."""
        found = self.stat(path + b"/")
        if found is not None and not found.size:
            self.delete(path + b"/")
        return None

    def remove_tree(self, path: bytes) -> None:
        """See Files."""
        for page in self.pages(path + b"/"):
            for listed in page:
                self.delete(path + b"/" + listed.path)

    def request(
        self,
        method: str,
        key: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        body: Bytes = b"",
        accept: Collection[int] = (),
        urgent: bool = False,
    ) -> Response:
        """Send one request for a small object, as the lock does; none waits for a limit."""
        del urgent
        if method == "DELETE":
            self.proxy.delete(key)
            return Response(204, {}, b"")
        return self.proxy.request_object(method, key, headers=headers, body=body, accept=accept)


def _checked_last(pieces: Iterator[Bytes], check: Callable[[], None]) -> Iterator[Bytes]:
    """Yield the pieces, the last one only after `check`."""
    held: Bytes | None = None
    for piece in pieces:
        if held is not None:
            yield held
        held = piece
    check()
    if held is not None:
        yield held


def _next_marker(rows: list[Listed], prefix: bytes, *, shallow: bool) -> bytes:
    """Return the marker after a page. With `shallow` it passes the rest of a folder, also if the service lists all of it."""
    last = rows[-1].path
    names = [row.path for row in rows]
    folder, slash, _ = last.partition(b"/")
    if shallow and slash and names == sorted(names):
        return prefix + folder + _AFTER_SLASH
    return prefix + last


def _first_level(rows: list[Listed], folders: set[bytes]) -> Iterator[Listed]:
    """Yield objects without a slash, and each folder once; `folders` are those of earlier pages."""
    for row in rows:
        folder, slash, _ = row.path.partition(b"/")
        if not slash:
            yield row
        elif folder not in folders:
            folders.add(folder)
            yield Listed(folder + b"/", -1, "", "")


class _Reading:
    """One range of an object, read by one or more requests: each goes on after the bytes that arrived before.

    Attributes:
        received: the number of bytes so far.
        total: the size of the whole object.
        etag: its ETag, "" without one.
        sent: its ETag or time, which must be the same in all answers.
    """

    def __init__(self, proxy: DataProxy, key: bytes, offset: int, length: int) -> None:
        self._proxy = proxy
        self._key = key
        self._offset = offset
        self._length = length
        self.received = 0
        self.total = -1
        self.etag = ""
        self.sent = ""

    def read(self, put: Callable[[bytes], object], *, keep: bool = False) -> None:
        """Call `put` with each piece; end early at the end of the object. `keep` as in `DataProxy.send_object`.

        Raises `IncompleteError("source-changed")` if the object changes or has other bytes than requested.
        """

        def take(piece: bytes) -> None:
            if self.received + len(piece) > self._length:
                raise changed(self._proxy.subject)
            put(piece)
            self.received += len(piece)

        def attempt_once() -> Response:
            response = self._request(take, keep=keep)
            if self.received < min(self._length, self.total - self._offset):
                raise truncated(self._proxy.subject)
            return response

        try:
            self._proxy.tried(attempt_once, attempts=_READ_ATTEMPTS)
        except IncompleteError as problem:
            if problem.code == "answer-too-long":
                raise changed(self._proxy.subject) from None
            raise

    def _request(self, take: Callable[[bytes], object], *, keep: bool) -> Response:
        first = self._offset + self.received
        left = self._length - self.received
        headers = {"Range": f"bytes={first}-{first + left - 1}"} if left else {}
        response = self._proxy.send_object(
            "GET",
            self._key,
            headers=headers,
            accept=(416,),
            most=left,
            receive=take,
            begin=lambda head: self._begin(head, first),
            keep=keep,
        )
        if response.status == 416:  # the range begins after the end, which an empty object has at 0
            found = _EMPTY_RANGE.fullmatch(response.headers.get("content-range", ""))
            self._note(response, int(found[1]) if found else 0)
        return response

    def _begin(self, head: Response, first: int) -> None:
        """Check the head of an answer: the requested range of the same version."""
        found = _RANGE.fullmatch(head.headers.get("content-range", ""))
        if found is not None and int(found[1]) == first:
            self._note(head, int(found[2]))
            return
        length = head.headers.get("content-length", "")
        if head.status == 206 or first or not length.isdigit():
            raise not_partial(self._proxy.subject)
        self._note(head, int(length[:18]))  # the whole object, from a host without ranges

    def _note(self, head: Response, total: int) -> None:
        sent = head.etag or head.headers.get("last-modified", "")
        if self.total >= 0 and (total, sent) != (self.total, self.sent):
            raise changed(self._proxy.subject)
        self.total, self.sent, self.etag = total, sent, head.etag
