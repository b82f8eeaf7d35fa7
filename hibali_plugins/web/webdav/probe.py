"""Probe what a WebDAV server supports, once, and remember it."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from hibali.errors import AccessError, HibaliError, IncompleteError
from hibali_plugins.web.webdav.files import DavFiles, date_of, known_value
from hibali_plugins.web.webdav.lock import holding, refresh_lock, request_lock, token_in
from hibali_plugins.web.webdav.multistatus import KNOWN
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts
from transfers.stores.server import probe as server_probe
from transfers.stores.server.files import Put
from transfers.stores.server.own_files import OWN, Own, below
from transfers.stores.server.probe import LONG_NAME, refused_characters, run_probe
from transfers.stores.server.records import Found

SEGMENT_BYTES = 8 * 1024 * 1024
MODIFIED = "DAV: getlastmodified"
TIME_HEADER = "X-OC-Mtime"  # from ownCloud; Nextcloud, rclone and others support it too
_TABLE = "folders"
_SECOND = 1_000_000_000
_TIME = 1_000_000_000 * _SECOND
_FIRST, _OTHER = b"hibali tests this server\n", b"and tests it again\n"
_DIGEST = "0" * 64
_LACKING = frozenset({"not-supported", "refused-by-server", "busy", "denied", "bad-answer"})
_ODD = (
    b"\\",
    b"\n",
    b"\r",
    b"\t",
    b"\x01",
    b"\x7f",
    b":",
    b"*",
    b"?",
    b'"',
    b"<",
    b"|",
    b"#",
    b"%",
    b"+",
    b";",
    b" ",
)


@dataclass(frozen=True, slots=True)
class ServerSupport:
    """What a server supports, as probed; the default is nothing."""

    writable: bool = False  # PUT, MOVE that does not replace unless allowed, MOVE that replaces, DELETE
    locks: bool = False  # LOCK protects a file from other clients
    properties: bool = False  # MOVE keeps hibali's property and the tag
    times: str = ""  # how to set a modification time: "header", "proppatch" or "" (impossible)
    ranges: bool = False  # supports Range requests
    if_match: bool = False  # DELETE with If-Match rejects a wrong tag
    if_tag: bool = False  # the If header of MOVE, for the replaced file, rejects a wrong tag
    utf8_names: bool = True  # accepts only UTF-8 names
    folds_case: bool = False
    name_bytes: int = 0  # 255 if the server rejected a longer component
    refuses: tuple[str, ...] = ()  # characters that names cannot contain

    @property
    def versions(self) -> bool:
        """Whether the server or hibali's property stores a file's time."""
        return self.properties or bool(self.times)

    @property
    def put(self) -> str:
        """See Support: what is probed is how MOVE replaces a file."""
        return Put.RENAMED

    replaces = folders = True
    file_and_folder = False


def facts_of(support: ServerSupport | None, read_verification: Verification, *, read_back: bool) -> Facts:
    """Return the store's facts; for an unknown server, assume that locks work."""
    seen = support or ServerSupport(writable=True, locks=True, properties=True, utf8_names=True)
    return Facts(
        kind="webdav",
        read_verification=read_verification,
        write_verification=Verification.DIGEST if read_back else Verification.SIZE,
        links=False,
        modes=seen.properties,
        mtimes=seen.versions,
        mtime_unit_ns=1 if support is not None and seen.properties else _SECOND,
        locks=seen.locks,
        swaps=False,
        name_bytes=seen.name_bytes,
        utf8_names=seen.utf8_names,
        folds_case=seen.folds_case,
        segment_bytes=SEGMENT_BYTES,
        refuses=tuple(character.encode() for character in seen.refuses),
        known=support is not None,
    )


def recall(site: str, origin: str, base: str) -> ServerSupport | None:
    """Return the stored probe result of this server and path, if any."""
    return server_probe.recall(ServerSupport, site, _TABLE, base, origin)


def remember(site: str, origin: str, base: str, support: ServerSupport) -> None:
    """Store the probe result for the next call."""
    server_probe.remember(support, site, _TABLE, base, origin)


def probe_server(files: DavFiles, root: bytes) -> ServerSupport:
    """Probe the server in the existing folder `root`. Raise connection errors.

    If writing is denied, nothing else can be probed.
    """
    probe = _Probe(files, root)
    return run_probe(probe.run_and_clean, probe.stopped)


class _Probe:
    """One probe; listings skip its names, so leftovers of a crash do not appear in them."""

    def __init__(self, files: DavFiles, root: bytes) -> None:
        self._files = files
        self._client = files.client
        self._root = root
        self._all = below(root, OWN + b"/probe")
        self._folder = self._all + b"/" + secrets.token_hex(8).encode("ascii")
        self.stopped = threading.Event()

    def run_and_clean(self) -> ServerSupport:
        """Run the probe and remove its files. Raise `CancelledError` once `stopped` is set."""
        try:
            for folder in (below(self._root, OWN), self._all, self._folder):
                self._files.make_folder(folder)
            return self._run()
        except AccessError as problem:
            if problem.code != "denied":
                raise
            return ServerSupport()
        except IncompleteError as problem:
            if problem.code not in {"not-supported", "refused-by-server"}:
                raise
            return ServerSupport()
        finally:
            self._clean()

    def _clean(self) -> None:
        with contextlib.suppress(HibaliError):
            self._files.remove_folder(self._folder)
            if next(self._files.listed(self._all).names, None) is None:
                self._files.remove_folder(self._all)
            Own(self._files, self._root).remove_folder()

    def _run(self) -> ServerSupport:
        moved, old = self._put(b"a", _FIRST), self._put(b"b", _OTHER)
        entry = Entry(b"", Kind.FILE, len(_FIRST), _TIME, 0o644)
        is_set = self._sets(b"a", KNOWN, known_value(entry, _DIGEST, moved.tag))
        if self._move({}, overwrite=False) != 412:
            return ServerSupport()  # MOVE replaced a file despite Overwrite: F
        wrong = f'<{self._client.address(self._path(b"b"))}> (["no tag of it"])'
        right = wrong.replace("no tag of it", old.tag)
        if_tag = (
            self._move({"If": wrong}, overwrite=True) == 412
            and self._move({"If": right}, overwrite=True) < 300
        )
        if not if_tag:
            # If the wrong tag was accepted, both files must be created again.
            moved = self._put(b"a", _FIRST)
            is_set = is_set and self._sets(b"a", KNOWN, known_value(entry, _DIGEST, moved.tag))
            self._put(b"b", _OTHER)
            if self._move({}, overwrite=True) >= 300:
                return ServerSupport()
        now = self._found(b"b")
        if now is None or now.size != len(_FIRST) or self._found(b"a") is not None:
            return ServerSupport()
        return ServerSupport(
            writable=True,
            locks=_has(self._locks),
            properties=is_set and now.digest == _DIGEST and now.mtime_ns == _TIME,
            times=self._times(),
            ranges=_has(self._ranges),
            if_match=_has(self._if_match),
            if_tag=if_tag,
            **self._names(),
        )

    def _path(self, name: bytes) -> bytes:
        return self._folder + b"/" + name

    def _put(self, name: bytes, content: bytes, headers: dict[str, str] | None = None) -> Found:
        if self.stopped.is_set():
            raise CancelledError
        self._files.put(self._path(name), content, headers or {})
        found = self._found(name)
        if found is None:
            raise IncompleteError(
                "refused-by-server",
                "a file that was just written does not exist",
                subject=self._files.subject,
            )
        return found

    def _found(self, name: bytes) -> Found | None:
        return self._files.stat(self._path(name))

    def _move(self, headers: dict[str, str], *, overwrite: bool) -> int:
        try:
            return self._files.send_move(self._path(b"a"), self._path(b"b"), headers, overwrite=overwrite)
        except IncompleteError:  # some servers fail on the header
            return 412

    def _sets(self, name: bytes, property_name: str, value: str) -> bool:
        return _has(lambda: self._files.set_property(self._path(name), property_name, value))

    def _locks(self) -> bool:
        path = self._path(b"lock")
        token = token_in(request_lock(self._client, path, 60, "hibali"))
        upload_lock = holding(self._client, path, token)
        return (
            token != ""
            and request_lock(self._client, path, 60, "hibali").status == 423
            and self._status("PUT", path, {}) == 423
            and self._status("PUT", path, upload_lock) < 300
            and refresh_lock(self._client, path, token, 60)
            and self._status("DELETE", path, upload_lock) < 300
        )

    def _status(self, method: str, path: bytes, headers: dict[str, str]) -> int:
        body = _FIRST if method == "PUT" else b""
        return self._client.request(method, path, headers=headers, body=body, accept=range(400, 500)).status

    def _times(self) -> str:
        headers = {TIME_HEADER: str(_TIME // _SECOND)}
        if self._put(b"t", _FIRST, headers).mtime_ns == _TIME:
            return "header"
        self._sets(b"t", MODIFIED, date_of(_TIME))
        found = self._found(b"t")
        return "proppatch" if found is not None and found.mtime_ns == _TIME else ""

    def _ranges(self) -> bool:
        response = self._client.request("GET", self._path(b"t"), headers={"Range": "bytes=2-4"})
        return response.status == 206 and response.body == _FIRST[2:5]

    def _if_match(self) -> bool:
        found = self._found(b"t")
        if found is None or found.tag.startswith("@"):
            return False
        # The right tag is not tried: it is weak in its first second, which If-Match rejects.
        return self._files.send_delete(self._path(b"t"), {"If-Match": '"no tag of it"'}) == 412

    def _names(self) -> dict[str, Any]:
        # servers may decode `%41` to `A`
        tried = {b"x" + odd + (b"41x" if odd == b"%" else b"x"): odd for odd in _ODD}
        byte, long, upper = b"x\xff", b"l" * LONG_NAME, b"UPPER"
        all_tried = all(map(self._try, (upper, *tried, long, byte)))
        found: set[bytes] = set()
        folds_case = False
        try:
            listed = self._files.listed(self._folder).names
            found = {name for name, found_file in listed if found_file.size == len(_FIRST)}
            folds_case = self._found(b"upper") is not None
        except HibaliError:
            if all_tried:
                raise
        return {
            "refuses": refused_characters(tried, found),
            "name_bytes": 0 if long in found else 255,
            "utf8_names": byte not in found,
            "folds_case": folds_case,
        }

    def _try(self, name: bytes) -> bool:
        """Create a file with a name that the server may not support; return False if that may have ended the server.

        Uses MOVE, as commits do: wsgidav cuts names in Destination off at a `?` or `#`. Names that are not tried count as refused.
        """
        if self.stopped.is_set():
            raise CancelledError
        part = self._path(b"part")
        headers = {"Destination": self._client.address(self._path(name)), "Overwrite": "F"}
        try:
            self._client.request("PUT", part, body=_FIRST, accept=range(400, 501))
            self._client.request("MOVE", part, headers=headers, accept=range(400, 600), attempts=1)
        except HibaliError as problem:
            return problem.code in _LACKING
        return True


def _has(probe: Callable[[], bool]) -> bool:
    """Return the result of a probe of an optional feature; a server that refuses it, or whose answer is not understood, lacks the feature."""
    try:
        return probe()
    except HibaliError as problem:
        if problem.code in _LACKING:
            return False
        raise
