"""Hold the lease of a target at a filesystem without conditional writes."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import Any

from hibali.documents import line_of_json
from hibali.errors import HibaliError
from hibali.retry import pause
from transfers.agent.lease import LEASE_SECONDS
from transfers.model.entry import Kind
from transfers.model.leases import record_of
from transfers.stores.filesystem.files import Files
from transfers.stores.filesystem.traits import Exclusive
from transfers.stores.server_folder import OWN, SMALL_BYTES, Own, below
from transfers.stores.server_lease import Held, Lease, no_lock_file

_LOCK = OWN + b"/lock"
PROBE = OWN + b"/probe"
_NS = 1_000_000_000
_CLAIM = _LOCK + b".new"
_CLAIM_SECONDS = 30.0  # in which the holder of this folder must have written its lock
_DEAD_SECONDS = 120.0  # after which the client that made this folder is dead
_SETTLED_SECONDS = 2.0  # longer than any client needs between reading a stale lock and removing it


def find_lock(files: Files, folder: bytes) -> Held | None:
    """Return the lock of a folder with its age, None if there is none."""
    path = below(folder, _LOCK)
    content = files.read_small(path, SMALL_BYTES)
    return None if content is None else Held(record_of(content), _age_of(files, folder))


def _age_of(files: Files, folder: bytes, name: bytes = _LOCK) -> float | None:
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
        self._path = below(root, _LOCK)
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
