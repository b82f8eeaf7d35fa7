"""Hold the lease of an SFTP target in the agent's format (S6), and keep its journal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time

from hibali.errors import RefusedError
from transfers.agent import protocol
from transfers.agent.protocol import LEASE_SECONDS
from transfers.model.entry import Kind
from transfers.model.leases import locked, record_of
from transfers.stores.server.lease import Held, Lease, journal_of, no_lock_file, seeds_in
from transfers.stores.sftp import channel
from transfers.stores.sftp.channel import Attributes, StatusError
from transfers.stores.sftp.client import Client, kind_of, listed_names
from transfers.stores.sftp.paths import SafePaths

OWN = protocol.OWN_FOLDER
_JOURNAL = OWN + b"/journal"
_LIMIT = 64 * 1024
_PRIVATE = 0o600


class _NoFileError(StatusError):
    """The error for a folder, FIFO or link with the name of one of hibali's files."""


class Own:
    """Hibali's own small files below one root."""

    def __init__(self, client: Client, safe_paths: SafePaths) -> None:
        self._client = client
        self._safe_paths = safe_paths
        self.user: int | None = None  # our user id at the server, once known

    def read(self, path: bytes) -> tuple[bytes, Attributes] | None:
        """Read a small regular file and its attributes; None if it is missing. Raise `StatusError`."""
        full = self._safe_paths.full(path)
        client = self._client
        try:
            if kind_of(client.attributes_of(client.request_stat(full))) is not Kind.FILE:
                raise _NoFileError(channel.FAILURE, "it is not a file")
            handle = client.handle_of(client.request_open(full, channel.FOR_READING))
        except StatusError as problem:
            if problem.code == channel.NO_SUCH_FILE:
                return None
            raise
        try:
            requests = client.request_handle_stat(handle)
            content = client.data_of(client.request_read(handle, 0, min(_LIMIT, client.read_bytes)))
            return content, client.attributes_of(requests)
        finally:
            client.request_close(handle)

    def write(self, path: bytes, content: bytes) -> Attributes:
        """Create a private file, synced to disk if the server supports that. Raise `StatusError`."""
        client = self._client
        flags = channel.FOR_WRITING | channel.FOR_READING | channel.CREATE | channel.EXCLUSIVE
        handle = client.handle_of(client.request_open(self._safe_paths.full(path), flags, _PRIVATE))
        requests = [*client.request_write(handle, 0, memoryview(content)), client.request_sync(handle)]
        attributes = client.request_handle_stat(handle)
        requests.append(client.request_close(handle))
        refused = client.settle(requests)
        found = client.attributes_of(attributes)
        if refused is not None:
            raise refused
        return found

    def find_user(self) -> None:
        """Find our user id: the owner of a new file in the root. Raise `StatusError`."""
        name = b".hibali-" + os.urandom(16).hex().encode("ascii")
        try:
            self.user = self.write(name, b"").user
        finally:
            self.remove(name)

    def refresh(self, path: bytes, content: bytes) -> bool:
        """Rewrite a file's content, which updates its time by the server's clock.

        Returns False if the content differs. Uses one handle, so a concurrently renamed file is not
        changed. Raises `StatusError`.
        """
        client = self._client
        flags = channel.FOR_WRITING | channel.FOR_READING
        handle = client.handle_of(client.request_open(self._safe_paths.full(path), flags))
        try:
            if client.data_of(client.request_read(handle, 0, min(_LIMIT, client.read_bytes))) != content:
                return False
            refused = client.settle(client.request_write(handle, 0, memoryview(content)))
            if refused is not None:
                raise refused
            return True
        finally:
            client.request_close(handle)

    def remove(self, path: bytes) -> None:
        """Remove a file; ignore errors, because the next run recognizes it by name."""
        with contextlib.suppress(StatusError):
            self._client.request_remove(self._safe_paths.full(path)).wait()

    def rename(self, old: bytes, new: bytes) -> None:
        """Rename, replacing the target. Raise `StatusError`."""
        self._client.request_rename(self._safe_paths.full(old), self._safe_paths.full(new)).wait()

    def seeds(self, folder: bytes = b"") -> list[bytes]:
        """Return the seeds of unfinished operations of our account in `folder`, newest first."""
        try:
            found = self.read(folder + b"/" + _JOURNAL if folder else _JOURNAL)
        except StatusError:
            return []
        if found is None or (found[1].user is not None and found[1].user != self.user):
            return []
        return seeds_in(found[0])

    def open_seed(self) -> bytes:
        """Return a new seed, recorded in the journal beside the earlier ones. Raise `StatusError`."""
        seed = os.urandom(16)
        content = journal_of([seed, *self.seeds()])
        name = _JOURNAL + b"." + os.urandom(16).hex().encode("ascii")
        self.write(name, content)
        if not self._client.offers(b"posix-rename@openssh.com"):
            self.remove(_JOURNAL)
        self.rename(name, _JOURNAL)
        return seed

    def end_journal(self) -> None:
        """Remove the journal when no partial file is left; the lock removes the folder."""
        self.remove(_JOURNAL)


_LOCK = OWN + b"/lock"
_TRIES = 20
_REPLACING_SECONDS = 60  # after this, a call that replaces a stale lock counts as dead
_GRAIN = 1.0  # times over SFTP are whole seconds


class SftpLock(Lease):
    """The lock file in `.hibali` of one root, in the agent's format; renewed over the same connection."""

    check_seconds = 0.0

    def __init__(
        self, client: Client, safe_paths: SafePaths, own: Own, operation: str, seconds: int = LEASE_SECONDS
    ) -> None:
        """Take the lock. Raise `RefusedError` and `AccessError` besides the errors of `Lease`."""
        self._client = client
        self._safe_paths = safe_paths
        self._own = own
        self._now = 0  # time of our record by the server's clock
        self._unmade: StatusError | None = None
        super().__init__(client.subject, operation, seconds)

    @property
    def _part(self) -> bytes:
        """The path of our record before it gets the lock's name."""
        return OWN + b"/lock." + self._token.encode("ascii")

    @property
    def _content(self) -> bytes:
        return json.dumps(self._record).encode("ascii") + b"\n"

    def _acquire(self) -> None:
        """Take the lock; retry if another holder's release removed `.hibali` meanwhile."""
        problem = StatusError(channel.FAILURE, "")
        for _ in range(_TRIES):
            try:
                self._acquire_in_folder()
                return
            except _NoFileError:
                raise no_lock_file(self._client.subject) from None
            except StatusError as refused:
                problem = refused
                if refused.code != channel.NO_SUCH_FILE:
                    break
        found = self._client.problem(self._unmade or problem, self._safe_paths.full(b""))
        if found.code == "no-space":
            raise RefusedError(found.code, found.message, subject=self._client.subject)
        raise self._client.error(self._unmade or problem, self._safe_paths.full(OWN))

    def _acquire_in_folder(self) -> None:
        folder = self._folder()
        if folder.user != self._own.user:
            self._own.find_user()
        if (folder.user is not None and folder.user != self._own.user) or (folder.mode or 0) & 0o022:
            raise self._refused("not-private", "belongs to another account, or others can write to it")
        began = time.monotonic()
        self._now = self._own.write(self._part, self._content).seconds or 0
        try:
            super()._acquire()
            self._renewed = began  # the lock has the time of the record file
            self._sweep()
        finally:
            self._own.remove(self._part)

    def _folder(self) -> Attributes:
        """Make `.hibali` below the root if it is missing (mode 0700); return its attributes."""
        full = self._safe_paths.full(OWN)
        made = self._client.request_make_folder(full, 0o700)
        pending_stat = self._client.request_stat(full)
        refused = self._client.settle([made])
        try:
            found = self._client.attributes_of(pending_stat)
        except StatusError as problem:
            if problem.code != channel.NO_SUCH_FILE or refused is None:
                raise
            # It cannot be made, or another holder removed it between the two requests.
            self._unmade = refused
            raise (problem if refused.code == channel.FAILURE else refused) from None
        if kind_of(found) is not Kind.FOLDER:
            raise self._refused("reserved-name", "is not a folder, but hibali needs this name")
        return found

    def _refused(self, code: str, reason: str) -> RefusedError:
        return RefusedError(code, f"`.hibali` there {reason}", subject=self._client.subject)

    def _create(self) -> bool:
        """Link our record to the lock's name; without hard links, create the lock exclusively."""
        linked = self._client.request_link(self._safe_paths.full(self._part), self._safe_paths.full(_LOCK))
        if linked is not None:
            refused = self._client.settle([linked])
            if refused is None:
                return True
            if refused.code == channel.NO_SUCH_FILE:
                raise refused
            if refused.code == channel.FAILURE and self._own.read(_LOCK) is not None:
                return False
        try:
            self._own.write(_LOCK, self._content)
        except StatusError as problem:
            if problem.code != channel.FAILURE:
                raise
            return False
        return True

    def _read(self) -> Held | None:
        found = self._own.read(_LOCK)
        return None if found is None else _held(found, self._now)

    def _replace(self, found: Held) -> bool:
        """Rename our record over the lock; a marker named after the stale token admits one call at a time."""
        token = str(found.holder.get("token")).encode("utf-8", "replace")
        marker = OWN + b"/broken." + hashlib.sha256(token).hexdigest()[:32].encode("ascii")
        try:
            self._own.write(marker, b"")
        except StatusError:
            left = self._own.read(marker)
            if left is not None and self._now - (left[1].seconds or 0) > _REPLACING_SECONDS:
                self._own.remove(marker)
            raise locked(found.holder, self._client.subject) from None
        try:
            current = self._read()
            if current is None or current.holder.get("token") != found.holder.get("token"):
                return False
            if not self._client.offers(b"posix-rename@openssh.com"):
                self._own.remove(_LOCK)
            self._own.rename(self._part, _LOCK)
        finally:
            self._own.remove(marker)
        return True

    def clock(self) -> int:
        """Return the server's time at the last write of the lock, near to now. Raise `StatusError`."""
        found = self._own.read(_LOCK)
        return 0 if found is None else found[1].seconds or 0

    def _sweep(self) -> None:
        """Remove records of calls that were killed while they took the lock; a live one retries."""
        with contextlib.suppress(StatusError):
            for name in [one.name for one in listed_names(self._client, self._safe_paths.full(OWN))]:
                if protocol.is_lock_part(name):
                    self._own.remove(OWN + b"/" + name)

    def _is_held(self) -> bool:
        try:
            return super()._is_held()
        except StatusError:
            return False

    def _renew(self) -> bool:
        """Rewrite the record to update its time by the server's clock, which may differ from ours.

        Returns False if the lease may have expired: SFTP has no compare-and-replace, so another call may
        be replacing the lock although it still holds our record.
        """
        if not self._sure:
            return False
        try:
            return self._own.refresh(_LOCK, self._content)
        except StatusError as problem:
            raise self._client.error(problem, self._safe_paths.full(_LOCK)) from None

    def _remove(self) -> None:
        with contextlib.suppress(StatusError):
            self._client.request_remove(self._safe_paths.full(_LOCK)).wait()
            # The folder may still hold a journal for the next run or a user's files.
            self._client.request_remove_folder(self._safe_paths.full(OWN)).wait()


def find_lock(own: Own, clock: int) -> Held | None:
    """Return the root's lock, with its age by the server's `clock`; None if missing or another account's."""
    try:
        found = own.read(_LOCK)
    except StatusError:
        return None
    if found is None or (found[1].user is not None and own.user not in {None, found[1].user}):
        return None
    return _held(found, clock)


def _held(found: tuple[bytes, Attributes], clock: int) -> Held:
    return Held(record_of(found[0]), clock - (found[1].seconds or 0) - _GRAIN)
