"""Hold the lease of a target at a server: by conditional writes in a bucket, by a file that one client can create elsewhere."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from hibali.documents import line_of_json
from hibali.errors import HibaliError
from hibali.http.client import Bytes, Response
from hibali.retry import pause
from transfers.agent.protocol import LEASE_SECONDS
from transfers.model.entry import Kind, enclosing
from transfers.model.leases import locked, record_of
from transfers.stores.server.files import Exclusive, Files
from transfers.stores.server.lease import Held, Lease, no_lock_file
from transfers.stores.server.own_files import OWN, SMALL_BYTES, Own, below

NAME = b".hibali/lock"
_HELD = frozenset({404, 409, 412})


class ObjectRequests(Protocol):
    """Requests for the objects of one bucket, with the errors and conditions of S3."""

    @property
    def subject(self) -> str:
        """The bucket, as errors name it."""

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
        """Send one request. Raise an error for statuses that are not in `accept`. An urgent one overtakes those that wait for a limit."""


class ConditionalLock(Lease):
    """The lock object of one prefix."""

    def __init__(
        self,
        requests: ObjectRequests,
        key: bytes,
        operation: str,
        seconds: int = LEASE_SECONDS,
        *,
        token: str = "",
    ) -> None:
        """`token` is that of a lock which an earlier call of this operation left to compute nodes."""
        self._requests = requests
        self._key = key
        self._puts = 0
        self._etag = ""  # of our own lock, from the last PUT or GET
        super().__init__(requests.subject, operation, seconds, token)

    @property
    def renewable(self) -> bool:
        """Whether the server told a version of the lock, without which it can be neither renewed nor taken over."""
        return bool(self._etag) or (self._is_held() and bool(self._etag))

    def _create(self) -> bool:
        # After a lost response, our own lock appears to be another client's.
        return self._put({"If-None-Match": "*"}) or self._is_held()

    def _read(self) -> Held | None:
        response = self._requests.request("GET", self._key, accept=_HELD, urgent=True)
        return _held(response) if response.status < 300 else None

    def _is_held(self) -> bool:
        found = self._read()
        if found is None or found.holder.get("token") != self._token:
            return False
        self._etag = found.tag  # never the ETag of another client's lock: `_renew` would overwrite it
        return True

    def _replace(self, found: Held) -> bool:
        if not found.tag:
            self._remove()
            return self._create()
        return self._put({"If-Match": f'"{found.tag}"'})

    def _renew(self) -> bool:
        # `check` may have read the lock just before the last PUT, or a response was lost.
        return self._put_if_unchanged() or (self._is_held() and self._put_if_unchanged())

    def _put_if_unchanged(self) -> bool:
        return self._put({"If-Match": f'"{self._etag}"'})

    def _put(self, headers: dict[str, str]) -> bool:
        # Each write differs: an unchanged ETag would let another client take over a live lock.
        self._puts += 1
        body = line_of_json({**self._record, "beat": self._puts}).encode("ascii") + b"\n"
        response = self._requests.request(
            "PUT", self._key, body=body, headers=headers, accept=_HELD, urgent=True
        )
        if response.status < 300:
            self._etag = response.etag
        return response.status < 300

    def _remove(self) -> None:
        self._requests.request("DELETE", self._key, accept=_HELD, urgent=True)


def find_lock(requests: ObjectRequests, key: bytes) -> Held | None:
    """Return the lock at a key; None if there is none or access is denied."""
    response = requests.request("GET", key, accept=(403, 404))
    return _held(response) if response.status < 300 else None


def _held(response: Response) -> Held:
    return Held(record_of(response.body), response.age, response.etag)


_LOCK = b"/" + NAME


def is_lock(path: bytes) -> bool:
    """Return whether the path is the lock of another root below this one."""
    return path.endswith(_LOCK)


def check_unheld(requests: ObjectRequests, root: bytes, locks: Iterable[bytes]) -> None:
    """Raise `TryLaterError("locked")` if a lock above the root, or one of the keys `locks`, is held."""
    above = [folder + _LOCK if folder else NAME for folder in enclosing(root)] if root else []
    for key in (*above, *locks):
        found = find_lock(requests, key)
        if found is not None and not found.free:
            raise locked(found.holder, requests.subject)


PROBE = OWN + b"/probe"
_NS = 1_000_000_000
_CLAIM = NAME + b".new"
_CLAIM_SECONDS = 30.0  # in which the holder of this folder must have written its lock
_DEAD_SECONDS = 120.0  # after which the client that made this folder is dead
_SETTLED_SECONDS = 2.0  # longer than any client needs between reading a stale lock and removing it


def find_file_lock(files: Files, folder: bytes) -> Held | None:
    """Return the lock of a folder with its age, None if there is none."""
    path = below(folder, NAME)
    content = files.read_small(path, SMALL_BYTES)
    return None if content is None else Held(record_of(content), _age_of(files, folder))


def _age_of(files: Files, folder: bytes, name: bytes = NAME) -> float | None:
    """Return the age of a lock by the server's clock, which a new file tells; None if unknown."""
    clock = below(folder, PROBE + b"/" + secrets.token_hex(8).encode("ascii"))
    try:
        files.make_folder(below(folder, PROBE))
        files.put(clock, b"\n")
        now, lock = files.stat(clock), files.stat(below(folder, name))
        if now is None or lock is None or not (now.mtime_ns and lock.mtime_ns):
            return None
        return (now.mtime_ns - lock.mtime_ns) / _NS
    except HibaliError:
        return None
    finally:
        with contextlib.suppress(HibaliError):
            files.delete(clock)
            files.remove_folder(below(folder, PROBE))


class FileLock(Lease):
    """The lock file of one root, which only one client can create.

    No operation replaces a file only if it is unchanged. A stale lock is therefore removed and
    created anew, and counts only if it is still ours after a pause: any other client that saw the stale lock
    has removed ours before that, and then neither writes.
    """

    def __init__(
        self,
        files: Files,
        root: bytes,
        operation: str,
        how: Exclusive,
        seconds: int = LEASE_SECONDS,
    ) -> None:
        self._files = files
        self._root = root
        self._path = below(root, NAME)
        self._how = how
        self._renewing = threading.Lock()  # a renewal is not atomic where files are written in place
        super().__init__(files.subject, operation, seconds)

    def _content(self) -> bytes:
        return line_of_json(self._record).encode("ascii") + b"\n"

    def _create(self) -> bool:
        self._files.make_folder(below(self._root, OWN))
        if self._how is Exclusive.RENAME:
            return self._create_by_rename()
        if self._how is Exclusive.FOLDER:
            return self._create_by_folder()
        return self._files.create(self._path, self._content(), self._how)

    def _create_by_rename(self) -> bool:
        """Rename a complete lock; a rename that does not replace may fail without an error."""
        part = self._part()
        self._files.put(part, self._content())
        try:
            with contextlib.suppress(HibaliError):
                self._files.move(part, self._path)
            return self._is_held()
        finally:
            self._files.delete(part)

    def _create_by_folder(self) -> bool:
        """Write the lock while a folder that only one client can make keeps others from doing so.

        A client that took too long may write over the lock of another one, which took it for dead; so it looks again after a pause.
        """
        claim = below(self._root, _CLAIM)
        if not self._files.claim_folder(claim):
            age = _age_of(self._files, self._root, _CLAIM)
            if age is None or age < _DEAD_SECONDS:
                return False
            self._files.release_folder(claim)
            if not self._files.claim_folder(claim):
                return False
        began = time.monotonic()
        try:
            if self._files.stat(self._path) is not None or time.monotonic() - began > _CLAIM_SECONDS:
                return False
            self._files.put(self._path, self._content(), seconds=_CLAIM_SECONDS)
        finally:
            self._files.release_folder(claim)
        if time.monotonic() - began > _CLAIM_SECONDS:
            pause(_SETTLED_SECONDS)
        return self._is_held()

    def _part(self) -> bytes:
        return self._path + b"." + secrets.token_hex(16).encode("ascii")

    def _read(self) -> Held | None:
        with self._renewing:
            content = self._files.read_small(self._path, SMALL_BYTES)
        if content is None:
            return None
        record = record_of(content)
        if record.get("token") == self._token:
            return Held(record, 0.0)
        return Held(record, _age_of(self._files, self._root))

    def _replace(self, found: Held) -> bool:
        content = self._files.read_small(self._path, SMALL_BYTES)
        if content is None or record_of(content) != found.holder:
            return False
        self._files.delete(self._path)
        if not self._create():
            return False
        pause(_SETTLED_SECONDS)
        return self._is_held()

    def _renew(self) -> bool:
        if not self._is_held():
            return False
        with self._renewing:
            self._files.put(self._path, self._content())
        return True

    def _refusal(self, holder: dict[str, Any]) -> HibaliError:
        found = None if holder else self._files.stat(self._path)
        if found is not None and found.kind is not Kind.FILE:
            return no_lock_file(self._subject)
        return super()._refusal(holder)

    def _remove(self) -> None:
        self._files.delete(self._path)
        Own(self._files, self._root).remove_folder()
