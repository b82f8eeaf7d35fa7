"""Parse and write the XML of WebDAV within limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from xml.parsers.expat import ExpatError, ParserCreate
from xml.sax.saxutils import escape

from hibali.documents import UnsafeXmlError, refuse_declarations
from hibali.errors import TryLaterError

OWN = "urn:hibali:file"  # the namespace of hibali's only property
KNOWN = f"{OWN} known"
_DAV = "DAV:"
_MOST_DEPTH = 32
_MOST_TEXT = 64 * 1024  # of one element
_MOST_RESPONSE = 256 * 1024  # of the whole response for one name

FIND = (
    f'<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="{_DAV}" xmlns:H="{OWN}"><D:prop>'
    "<D:resourcetype/><D:getcontentlength/><D:getlastmodified/><D:getetag/><H:known/></D:prop></D:propfind>"
).encode()
FIND_FREE_BYTES = (
    f'<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="{_DAV}"><D:prop>'
    "<D:quota-available-bytes/></D:prop></D:propfind>"
).encode()
FIND_LOCK = (
    f'<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="{_DAV}"><D:prop>'
    "<D:lockdiscovery/></D:prop></D:propfind>"
).encode()
LOCK_OWNER, LOCK_TOKEN = "owner", "token"  # as properties: of the lock in lockdiscovery


class ResponseEntry(NamedTuple):
    """One response: href as received, whether it is a collection, properties by `NAMESPACE NAME`."""

    href: str
    folder: bool
    properties: dict[str, str]
    status: str


def lock_info(owner: str) -> bytes:
    """Return the body of an exclusive LOCK; `owner` identifies it."""
    return (
        f'<?xml version="1.0" encoding="utf-8"?><D:lockinfo xmlns:D="{_DAV}"><D:lockscope><D:exclusive/></D:lockscope>'
        f"<D:locktype><D:write/></D:locktype><D:owner>{escape(owner)}</D:owner></D:lockinfo>"
    ).encode()


def set_property(name: str, value: str) -> bytes:
    """Return the body of a PROPPATCH for one property; `name` is `NAMESPACE NAME`."""
    namespace, _, local = name.partition(" ")
    return (
        f'<?xml version="1.0" encoding="utf-8"?><D:propertyupdate xmlns:D="{_DAV}" xmlns:X="{namespace}"><D:set><D:prop>'
        f"<X:{local}>{escape(value)}</X:{local}></D:prop></D:set></D:propertyupdate>"
    ).encode()


class MultiStatus:
    """A streaming parser of multi-status responses (RFC 4918, section 13); reports each complete response."""

    def __init__(self, on_response: Callable[[ResponseEntry], None], subject: str) -> None:
        self._on_response = on_response
        self._subject = subject
        self._path: list[str] = []
        self._text: list[str] = []
        self._weight = 0
        self._seen = 0
        self._href = self._status = self._part_status = ""
        self._folder = self._part_folder = False
        self._found: dict[str, str] = {}
        self._part: dict[str, str] = {}
        self._parser = ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        refuse_declarations(self._parser)
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add_text

    def feed(self, content: bytes) -> None:
        """Parse the next chunk. Raise `TryLaterError` if it is invalid."""
        self._parse(content, last=False)

    def close(self) -> None:
        """Finish parsing. Raise `TryLaterError` if the response is incomplete."""
        self._parse(b"", last=True)

    def _parse(self, content: bytes, *, last: bool) -> None:
        try:
            self._parser.Parse(content, last)
        except (ExpatError, UnsafeXmlError, ValueError, LookupError):
            raise self._bad() from None

    def _bad(self) -> TryLaterError:
        return TryLaterError(
            "bad-answer",
            "the server's response is not valid WebDAV XML",
            subject=self._subject,
            transient=False,
        )

    def _start(self, name: str, _: dict[str, str]) -> None:
        path = self._path
        path.append(name)
        self._text = []
        self._seen = 0
        depth = len(path)
        if depth > _MOST_DEPTH or (depth == 1 and name != "DAV: multistatus"):
            raise self._bad()
        if depth == 2 and name == "DAV: response":
            self._href = self._status = ""
            self._folder, self._found, self._weight = False, {}, 0
        elif depth == 3 and name == "DAV: propstat":
            self._part_folder, self._part, self._part_status = False, {}, ""

    def _add_text(self, text: str) -> None:
        self._seen += len(text)
        self._weight += len(text)
        if self._seen > _MOST_TEXT or self._weight > _MOST_RESPONSE:
            raise self._bad()
        self._text.append(text)

    def _end(self, name: str) -> None:
        path = self._path
        depth = len(path)
        if depth > 1 and path[1] == "DAV: response":
            if depth > 3 and path[2] == "DAV: propstat":
                self._end_in_part(depth, name)
            elif depth <= 3:
                self._end_of_response(depth, name)
        path.pop()
        self._text = []

    def _end_of_response(self, depth: int, name: str) -> None:
        """Handle the end of a response or of a direct child of it."""
        if depth == 2:
            if not self._href:
                raise self._bad()
            self._on_response(ResponseEntry(self._href, self._folder, self._found, self._status))
        elif name == "DAV: href":
            self._href = self._written()
        elif name == "DAV: status":
            self._status = _code(self._written())
        elif name == "DAV: propstat" and self._part_status == "200":
            self._found |= self._part
            self._folder = self._folder or self._part_folder
        elif name == "DAV: propstat" and self._part_status != "404":
            self._status = self._status or self._part_status

    def _end_in_part(self, depth: int, name: str) -> None:
        """Handle the end of properties or of their common status."""
        path = self._path
        if depth == 4 and name == "DAV: status":
            self._part_status = _code(self._written())
        elif depth == 5 and path[3] == "DAV: prop":
            self._part[name] = self._written()
        elif depth == 6 and path[4] == "DAV: resourcetype" and name == "DAV: collection":
            self._part_folder = True
        elif depth == 7 and path[4] == "DAV: lockdiscovery" and name == "DAV: owner":
            self._part[LOCK_OWNER] = self._written()
        elif depth == 8 and path[4] == "DAV: lockdiscovery" and path[6] == "DAV: locktoken":
            self._part[LOCK_TOKEN] = self._written()

    def _written(self) -> str:
        return "".join(self._text).strip()


def _code(line: str) -> str:
    """Return the number in a status line."""
    parts = line.split()
    return parts[1] if len(parts) > 1 else ""
