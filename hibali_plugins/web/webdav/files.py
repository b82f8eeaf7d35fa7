"""Query and change files and folders at a WebDAV server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from email.utils import formatdate, parsedate_to_datetime
from itertools import chain
from urllib.parse import quote

from hibali.errors import HibaliError, IncompleteError, NotFoundError
from hibali.http.client import MAX_RESPONSE_BYTES, Bytes, Response
from hibali.http.errors import error_of
from hibali.system_errors import message_of
from hibali_plugins.web.webdav.multistatus import (
    FIND,
    FIND_FREE_BYTES,
    FIND_LOCK,
    KNOWN,
    LOCK_OWNER,
    LOCK_TOKEN,
    MultiStatus,
    ResponseEntry,
    set_property,
)
from hibali_plugins.web.webdav.requests import WebdavClient
from transfers.agent import protocol
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind
from transfers.model.identities import identity_of_url
from transfers.model.spool import Blocks
from transfers.stores.server.files import LIST_SECONDS, Children, Files
from transfers.stores.server.keys import Listed, in_order
from transfers.stores.server.reading import Got, changed
from transfers.stores.server.records import Found

_SECOND = 1_000_000_000
# of the years 1000 and 9999: the range of an HTTP date
_FIRST_SECOND, _LAST_SECOND = (
    -30_610_224_000,
    253_402_300_799,
)
_FIRST_IN_HEADER = 86_401  # Nextcloud returns 500 for an X-OC-Mtime of the first day of 1970 or before
_KNOWN_VALUE = re.compile(r"1 ([0-9a-f]{64}) (\d{1,20}) (-?\d{1,28}) (-1|\d{1,4}) (\S{1,500})")


def found_of(response: ResponseEntry) -> Found:
    """Parse a response to PROPFIND; hibali's own property counts only for the same tag and size."""
    if response.folder:
        return Found(Kind.FOLDER)
    length = response.properties.get("DAV: getcontentlength", "")
    size = int(length) if length.isdigit() and len(length) < 20 else -1
    modified = response.properties.get("DAV: getlastmodified", "")
    tag = tag_of(response.properties.get("DAV: getetag", ""), modified)
    known = _KNOWN_VALUE.fullmatch(response.properties.get(KNOWN, ""))
    if known and (int(known[2]), known[5]) == (size, quote(tag, safe="")):
        return Found(Kind.FILE, size, int(known[3]), tag, digest=known[1], mode=int(known[4]))
    return Found(Kind.FILE, size, time_of(modified), tag)


def known_value(entry: Entry, digest: str, tag: str) -> str:
    """Return hibali's property for a committed file."""
    return f"1 {digest} {entry.size} {entry.mtime_ns} {entry.mode & 0o777 if entry.mode >= 0 else -1} {quote(tag, safe='')}"


def tag_of(etag: str, modified: str) -> str:
    """Normalize an entity tag, which may be weak at first or unquoted; without one, use the time."""
    plain = etag.removeprefix("W/").strip('"')
    return plain or (f"@{time_of(modified)}" if modified else "")


def time_of(modified: str) -> int:
    """Convert an HTTP date to nanoseconds since the epoch; 0 if it is invalid."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return int(parsedate_to_datetime(modified).timestamp()) * _SECOND
    return 0


def header_seconds(mtime_ns: int) -> int:
    """Convert a time to whole seconds for `X-OC-Mtime`, the nearest that servers accept."""
    return min(max(mtime_ns // _SECOND, _FIRST_IN_HEADER), _LAST_SECOND)


def date_of(mtime_ns: int) -> str:
    """Convert nanoseconds to an HTTP date, in whole seconds within the range of such dates."""
    return formatdate(min(max(mtime_ns // _SECOND, _FIRST_SECOND), _LAST_SECOND), usegmt=True)


_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")
_MOST_WHOLE = 64 * 1024 * 1024  # maximum of one read at a server without ranges
_FOLDER, _UNKNOWN = -1, -2  # stored as sizes while names are sorted
_TRIES = 5
_OWN_FILE = Found(Kind.FILE)
_UNREQUESTED = "it contains unrequested names, or lacks the requested one"
_ABSENT = frozenset({404, 410})


class DavFiles(Files):
    """WebDAV requests by name."""

    def __init__(self, client: WebdavClient) -> None:
        self.client = client
        self.subject = client.subject
        self.lists_all = True  # whether the last listing was complete, as far as the kind of server tells

    @property
    def address(self) -> str:
        """See Files."""
        return self.client.address(b"")

    def identity(self, path: bytes) -> Identity:
        """See Files."""
        return identity_of_url(self.address, path)

    def close(self) -> None:
        """See Files."""
        self.client.close()

    def stat(self, path: bytes) -> Found | None:
        """Return the properties of a path, None if it is missing."""
        responses: list[ResponseEntry] = []
        response = self._find(path, "0", responses.append)
        if response.status in _ABSENT:
            return None
        if response.status in {400, 403}:
            # Some servers return 400 (Apache) or 403 (lighttpd) for a name below a file.
            if self._is_below_file(path):
                return None
            raise error_of(response.status, self.subject)
        own_responses = [one for one in responses if self.client.name_in(one.href, path) == b""]
        if len(own_responses) != 1:
            raise self._violation(path, _UNREQUESTED)
        if own_responses[0].status:
            code = int(own_responses[0].status) if own_responses[0].status.isdigit() else 500
            if code in _ABSENT:
                return None
            raise error_of(code, self.subject)
        return found_of(own_responses[0])

    def _is_below_file(self, path: bytes) -> bool:
        above = path.rpartition(b"/")[0]
        if not above:
            return False
        found = self.stat(above)
        return found is None or not found.folder

    def children(self, folder: bytes, *, seconds: float = LIST_SECONDS) -> list[tuple[bytes, Found]]:
        """See Files."""
        del seconds
        return list(self.listed(folder).names)

    def listed(self, folder: bytes) -> Children:
        """Return the direct children of a folder, sorted, after the whole response was read.

        Raises `IncompleteError("listing-violation")` if a response names something not requested (S3).
        """
        spools: list[Blocks] = []  # one for each attempt
        counted = {"itself": 0, "wrong": 0, "own": 0}
        inside_own = folder.rpartition(b"/")[2] == protocol.OWN_FOLDER
        own: set[bytes] = set()  # Apache lists a lock twice while it is being taken

        def receive(one: ResponseEntry) -> None:
            name = self.client.name_in(one.href, folder)
            if name and not (inside_own and name in protocol.OWN):
                spools[-1].append(_line_of(name, found_of(one), one.status))
                counted["own"] += name == protocol.OWN_FOLDER
            elif name:
                own.add(name)
            else:
                counted["wrong" if name is None else "itself"] += 1

        def begin() -> None:
            spools.append(Blocks())
            counted.update(itself=0, wrong=0, own=0)
            own.clear()

        try:
            response = self._find(folder, "1", receive, begin)
            if response.status in _ABSENT:
                raise NotFoundError("vanished", "it does not exist", subject=self.subject)
            if response.status >= 300:
                raise error_of(response.status, self.subject)
            if (counted["itself"], counted["wrong"]) != (1, 0):
                raise self._violation(folder, _UNREQUESTED)
            for name in own:
                spools[-1].append(_line_of(name, _OWN_FILE, ""))
            return Children(_sorted(spools[-1], self.subject), own=counted["own"] > 0)
        finally:
            for spooled in spools:
                spooled.close()

    def _find(
        self,
        path: bytes,
        depth: str,
        receive: Callable[[ResponseEntry], None],
        begin: Callable[[], None] = lambda: None,
    ) -> Response:
        parsers: list[MultiStatus] = []

        def start(response: Response) -> None:
            if response.status != 207:
                raise IncompleteError(
                    "not-webdav",
                    "the server at this URL does not support WebDAV",
                    subject=self.subject,
                    hint="Correct the site's url in config.toml.",
                )
            begin()
            parsers[:] = [MultiStatus(receive, self.subject)]

        def feed(piece: bytes) -> None:
            parsers[0].feed(piece)

        response = self.client.request(
            "PROPFIND",
            path,
            folder=depth == "1",
            headers={"Depth": depth, "Content-Type": "application/xml"},
            body=FIND,
            accept=(400, 403, 404, 410),
            receive=feed,
            begin=start,
        )
        if parsers and response.status < 300:
            parsers[0].close()
        # XRootD ends a listing without an error at a name that it cannot stat, such as a link to itself
        self.lists_all = not response.headers.get("server", "").lower().startswith("xrootd")
        return response

    def free_bytes(self, path: bytes) -> int | None:
        """Return the free bytes if the server reports them (RFC 4331)."""
        value = self._properties(path, FIND_FREE_BYTES).get("DAV: quota-available-bytes", "")
        return int(value) if value.isdigit() and len(value) < 20 else None

    def lock_at(self, path: bytes) -> tuple[str, str]:
        """Return owner and token of the lock on a path, empty if there is none."""
        found = self._properties(path, FIND_LOCK)
        return found.get(LOCK_OWNER, ""), found.get(LOCK_TOKEN, "")

    def _properties(self, path: bytes, body: bytes) -> dict[str, str]:
        response = self.client.request(
            "PROPFIND",
            path,
            headers={"Depth": "0", "Content-Type": "application/xml"},
            body=body,
            accept=range(400, 500),
        )
        found = self._parse(response)
        return found[0].properties if found else {}

    def _parse(self, response: Response) -> list[ResponseEntry]:
        """Return the responses in a multi-status body, none for another status."""
        found: list[ResponseEntry] = []
        if response.status == 207:
            parser = MultiStatus(found.append, self.subject)
            parser.feed(response.body)
            parser.close()
        return found

    def get(
        self,
        path: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = MAX_RESPONSE_BYTES,
    ) -> Got:
        """Read a file (at most `most` bytes) or `length` bytes from `offset`; return its tag and size too."""
        del etag  # the caller compares: a tag is weak in its first second, which If-Match rejects
        content = bytearray()
        heads: list[Response] = []

        def receive(piece: bytes) -> None:
            if length is not None and heads[0].status == 206 and len(content) + len(piece) > length:
                raise changed(self.subject)
            content.extend(piece)

        def begin(response: Response) -> None:
            content.clear()
            heads[:] = [response]
            if length is not None and response.status != 206:
                announced = response.headers.get("content-length", "")
                if not announced.isdigit() or int(announced) > _MOST_WHOLE:
                    raise IncompleteError(
                        "no-ranges",
                        "the server does not support range requests, which large files need",
                        subject=self.subject,
                    )

        headers = {} if length is None else {"Range": f"bytes={offset}-{offset + length - 1}"}
        # the whole file if the server has no ranges
        limit = most if length is None else max(length, _MOST_WHOLE)
        try:
            response = self.client.request(
                "GET",
                path,
                headers=headers,
                receive=receive,
                begin=begin,
                accept=(416,),
                most=limit,
                content=limit,
            )
        except IncompleteError as problem:
            raise changed(self.subject) if problem.code == "answer-too-long" else problem from None
        if response.status == 416:
            raise IncompleteError("source-changed", "it changed while it was read", subject=self.subject)
        tag = self._tag_in(heads[0], path)
        if length is None:
            return Got(content, tag, len(content))
        if response.status != 206:
            return Got(content[offset : offset + length], tag, len(content))
        found = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if found is None or int(found[1]) != offset:
            raise IncompleteError(
                "not-the-range-asked", "the server did not send the requested range", subject=self.subject
            )
        return Got(content, tag, int(found[2]))

    def _tag_in(self, head: Response, path: bytes) -> str:
        """Return the tag of what was read; request it if the response has none."""
        etag = head.headers.get("etag", "")
        if etag:
            return tag_of(etag, "")
        found = self.stat(path)
        return "" if found is None else found.tag

    def read(self, path: bytes, offset: int, length: int) -> bytes:
        """See Files."""
        return bytes(self.get(path, offset=offset, length=length).content)

    def read_small(self, path: bytes, most: int) -> bytes | None:
        """Return at most `most` bytes of a small file, None if it is missing or empty."""
        try:
            return bytes(self.get(path, offset=0, length=most).content)
        except HibaliError as problem:
            if problem.code in {"vanished", "source-changed"}:  # missing or empty
                return None
            raise

    def digest(self, path: bytes, expected: int) -> tuple[str, Found | None]:
        """Read a file and return its sha256, size and tag; the content is discarded.

        Stops after more than `expected` bytes, and returns no properties then.
        """
        summed = hashlib.sha256()
        size = 0
        heads: list[Response] = []

        def begin(response: Response) -> None:
            nonlocal summed, size
            summed, size = hashlib.sha256(), 0
            heads[:] = [response]

        def receive(piece: bytes) -> None:
            nonlocal size
            summed.update(piece)
            size += len(piece)

        try:
            self.client.request("GET", path, receive=receive, begin=begin, most=expected, content=expected)
        except IncompleteError as problem:
            if problem.code != "answer-too-long":
                raise
            return "", None
        return summed.hexdigest(), Found(Kind.FILE, size, 0, self._tag_in(heads[0], path))

    def put(
        self,
        path: bytes,
        content: Bytes,
        headers: dict[str, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> None:
        """Write a whole small file, replacing an existing one."""
        del seconds
        self.client.request("PUT", path, headers=headers, body=content)

    def make_folder(self, path: bytes) -> None:
        """Make one folder whose parents exist; an existing one is no error, a file of that name is."""
        status = 0
        for _ in range(_TRIES):
            # Apache returns 403 if another client creates or removes it at the same time.
            status = self.client.request("MKCOL", path, folder=True, accept=(400, 403, 405, 409)).status
            found = None if status < 300 else self.stat(path)
            if status < 300 or (found is not None and found.folder):
                return
            if found is not None:
                break
            if status not in {403, 405}:  # otherwise it may have been removed between the two requests
                raise error_of(status, self.subject)
        else:
            raise error_of(status, self.subject)
        raise IncompleteError("not-a-folder", message_of("not-a-folder"), subject=self.subject)

    def send_move(self, path: bytes, to: bytes, headers: dict[str, str], *, overwrite: bool) -> int:
        """Send MOVE; return a success status, 404 if the source is missing, 412 for a failed condition."""
        return self._judge(
            self.client.request(
                "MOVE",
                path,
                headers={**headers, "Destination": self.client.address(to), "Overwrite": "FT"[overwrite]},
                accept=(404, 412),
            )
        )

    def copy(self, path: bytes, to: bytes, size: int) -> None:
        """Send COPY for a file of `size` bytes; `to` is a name of ours, so that a repeated request may replace it.

        Of a folder that took the file's place, only the folder itself is copied.
        """
        headers = {"Destination": self.client.address(to), "Overwrite": "T", "Depth": "0"}
        self._judge(self.client.request("COPY", path, headers=headers, content=size))

    def delete(self, path: bytes) -> None:
        """See Files."""
        self.send_delete(path)

    def send_delete(self, path: bytes, headers: dict[str, str] | None = None, *, folder: bool = False) -> int:
        """Send DELETE; return a success status, 404, or 412 for a failed condition."""
        return self._judge(
            self.client.request("DELETE", path, headers=headers, folder=folder, accept=(404, 412))
        )

    def is_empty(self, folder: bytes) -> bool:
        """Return whether a folder has no entry."""
        return next(self.listed(folder).names, None) is None

    def remove_folder(self, path: bytes) -> None:
        """Send DELETE for a folder, with everything in it."""
        self.send_delete(path, folder=True)

    def remove_tree(self, path: bytes) -> None:
        """See Files."""
        self.remove_folder(path)

    def set_property(self, path: bytes, name: str, value: str) -> bool:
        """Set one property (PROPPATCH); return whether the server accepted it."""
        try:
            response = self.client.request(
                "PROPPATCH",
                path,
                headers={"Content-Type": "application/xml"},
                body=set_property(name, value),
                accept=range(400, 500),
            )
        except HibaliError as problem:
            if problem.code == "not-supported":
                return False
            raise
        return response.status < 300 and not self._failures(response)

    def _judge(self, response: Response) -> int:
        """Raise for a failed part, which status 207 may hide."""
        for code in self._failures(response):
            raise error_of(code, self.subject)
        return response.status

    def _failures(self, response: Response) -> list[int]:
        codes = [int(one.status) for one in self._parse(response) if one.status.isdigit()]
        return [code for code in codes if code >= 300]


def _line_of(name: bytes, found: Found, status: str) -> bytes:
    """Encode one name for sorting; for a name with an error, the tag is its status."""
    size = _FOLDER if found.folder else _UNKNOWN if status or found.size < 0 else found.size
    path = name + b"/" if found.folder else name
    details = f"{found.mtime_ns} {found.mode} {found.digest or ''}"
    return json.dumps([path.decode("latin-1"), size, status or found.tag, details]).encode("ascii")


def _listed_of(line: bytes) -> Listed:
    path, size, tag, details = json.loads(line)
    return Listed(path.encode("latin-1"), size, tag, details)


def _sorted(spooled: Blocks, subject: str) -> Iterator[tuple[bytes, Found]]:
    """Return the names sorted, after reading all of `spooled`."""
    ordered = in_order(map(_listed_of, spooled.blocks()), subject)
    first = next(ordered, None)
    return (_found_in(listed) for listed in chain([] if first is None else [first], ordered))


def _found_in(listed: Listed) -> tuple[bytes, Found]:
    path, size, tag, details = listed[:4]
    mtime_ns, mode, digest = details.split(" ")
    if size == _FOLDER:
        return path.removesuffix(b"/"), Found(Kind.FOLDER)
    return path, Found(Kind.FILE, size, int(mtime_ns), tag, digest=digest or None, mode=int(mode))
