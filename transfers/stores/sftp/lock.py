"""Hold the lease of an SFTP target in the agent's format (S6), and keep its journal."""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import json
import os
import secrets
import threading
import time
from typing import Any, NoReturn

from hibali.errors import HibaliError, RefusedError, TryLaterError
from hibali.text import printable
from transfers.agent import protocol
from transfers.agent.lease import LEASE_SECONDS, seconds_of
from transfers.entry import Kind
from transfers.stores.server_lease import is_free, let_go, own_record, record_of
from transfers.stores.sftp import channel as wire
from transfers.stores.sftp.channel import Attributes, StatusError
from transfers.stores.sftp.client import Client, kind_of, listed_names
from transfers.stores.sftp.paths import Beneath

OWN = protocol.OWN_FOLDER
_JOURNAL = OWN + b"/journal"
_LIMIT = 64 * 1024
_SEEDS = 800  # fit into one read of any server
_PRIVATE = 0o600


class Own:
    """Small files of our own below one root."""

    def __init__(self, client: Client, beneath: Beneath) -> None:
        self._client = client
        self._beneath = beneath
        self.user: int | None = None  # who we are there, once known

    def read(self, path: bytes) -> tuple[bytes, Attributes] | None:
        """A small regular file with what is told of it, None when absent; raises `StatusError`."""
        full = self._beneath.full(path)
        client = self._client
        try:
            if kind_of(client.attributes_of(client.ask_stat(full))) is not Kind.FILE:
                raise StatusError(wire.FAILURE, "it is not a file")
            handle = client.handle_of(client.ask_open(full, wire.FOR_READING))
        except StatusError as problem:
            if problem.code == wire.NO_SUCH_FILE:
                return None
            raise
        try:
            asked = client.ask_handle_stat(handle)
            content = client.data_of(client.ask_read(handle, 0, min(_LIMIT, client.read_bytes)))
            return content, client.attributes_of(asked)
        finally:
            client.ask_close(handle)

    def write(self, path: bytes, content: bytes) -> Attributes:
        """A new private file, on disk where the server can. Raises `StatusError`."""
        client = self._client
        flags = wire.FOR_WRITING | wire.FOR_READING | wire.CREATE | wire.EXCLUSIVE
        handle = client.handle_of(client.ask_open(self._beneath.full(path), flags, _PRIVATE))
        asked = [*client.ask_write(handle, 0, memoryview(content)), client.ask_sync(handle)]
        told = client.ask_handle_stat(handle)
        asked.append(client.ask_close(handle))
        refused = client.settle(asked)
        found = client.attributes_of(told)
        if refused is not None:
            raise refused
        return found

    def find_user(self) -> None:
        """Who we are there: the owner of a file that we make in the root. Raises `StatusError`."""
        name = b".hibali-" + os.urandom(16).hex().encode("ascii")
        try:
            self.user = self.write(name, b"").user
        finally:
            self.remove(name)

    def refresh(self, path: bytes, content: bytes) -> bool:
        """Write a file's own content again, which moves its time by the far clock; False where it holds something else.

        Through one handle: what another renames over the name meanwhile is not touched. Raises `StatusError`.
        """
        client = self._client
        flags = wire.FOR_WRITING | wire.FOR_READING
        handle = client.handle_of(client.ask_open(self._beneath.full(path), flags))
        try:
            if client.data_of(client.ask_read(handle, 0, min(_LIMIT, client.read_bytes))) != content:
                return False
            refused = client.settle(client.ask_write(handle, 0, memoryview(content)))
            if refused is not None:
                raise refused
            return True
        finally:
            client.ask_close(handle)

    def remove(self, path: bytes) -> None:
        """Remove one; absent is done, and what stays is known by its name."""
        with contextlib.suppress(StatusError):
            self._client.ask_remove(self._beneath.full(path)).wait()

    def rename(self, old: bytes, new: bytes) -> None:
        """Rename over; raises `StatusError`."""
        self._client.ask_rename(self._beneath.full(old), self._beneath.full(new)).wait()

    def seeds(self, folder: bytes = b"") -> list[bytes]:
        """The seeds that unfinished operations left in `folder`, the newest first; only of our own account."""
        try:
            found = self.read(folder + b"/" + _JOURNAL if folder else _JOURNAL)
        except StatusError:
            return []
        if found is None or (found[1].user is not None and found[1].user != self.user):
            return []
        try:
            return [binascii.unhexlify(seed) for seed in json.loads(found[0])["seeds"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []

    def open_seed(self) -> bytes:
        """A new seed, beside the earlier ones when this returns. Raises `StatusError`."""
        seed = os.urandom(16)
        seeds = [one.hex() for one in [seed, *self.seeds()][:_SEEDS]]
        content = json.dumps({"version": 1, "seeds": seeds}).encode("ascii") + b"\n"
        name = _JOURNAL + b"." + os.urandom(16).hex().encode("ascii")
        self.write(name, content)
        if not self._client.offers(b"posix-rename@openssh.com"):
            self.remove(_JOURNAL)
        self.rename(name, _JOURNAL)
        return seed

    def end_journal(self) -> None:
        """Nothing partial is left: the journal goes, the folder with the lock."""
        self.remove(_JOURNAL)


_LOCK = OWN + b"/lock"
_TRIES = 20
_REPLACING_SECONDS = 60  # who took longer to replace a dead lock is dead, too
_GRAIN = 1.0  # times over SFTP are whole seconds


class SftpLock:
    """Held from construction to `release`; renewed by a thread of its own through the same connection."""

    def __init__(
        self, client: Client, beneath: Beneath, own: Own, operation: str, seconds: int = LEASE_SECONDS
    ) -> None:
        """Take it; one whose holder is provably gone, or whose lease ran out by the far clock, is replaced.

        Raises `TryLaterError("locked")` that names the holder, `RefusedError`, `AccessError`.
        """
        self._client = client
        self._beneath = beneath
        self._own = own
        self._seconds = seconds
        self._token = secrets.token_hex(16)
        self._part = OWN + b"/lock." + self._token.encode("ascii")
        self._record = json.dumps(own_record(operation, self._token, seconds)).encode("ascii") + b"\n"
        self._renewed = time.monotonic()
        self._ended = threading.Event()
        self._unmade: StatusError | None = None
        self._enter()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def _enter(self) -> None:
        """Take the lock in a `.hibali` that is still there: it goes with the lock of whoever gives theirs back."""
        problem = StatusError(wire.FAILURE, "")
        for _ in range(_TRIES):
            try:
                self._take()
                return
            except StatusError as refused:
                problem = refused
                if refused.code != wire.NO_SUCH_FILE:
                    break
        told = self._client.problem(self._unmade or problem, self._beneath.full(b""))
        if told.code == "no-space":
            raise RefusedError(told.code, told.message, subject=self._client.where)
        raise self._client.error(self._unmade or problem, self._beneath.full(OWN))

    def _take(self) -> None:
        folder = self._folder()
        if folder.user != self._own.user:
            self._own.find_user()
        if (folder.user is not None and folder.user != self._own.user) or (folder.mode or 0) & 0o022:
            raise self._refused("not-private", "is another account's, or others can write it")
        self._renewed = time.monotonic()
        mine = self._own.write(self._part, self._record)
        try:
            for _ in range(3):
                if self._appear() or self._replace_dead(mine):
                    self._sweep()
                    return
            self._locked({})
        finally:
            self._own.remove(self._part)

    def _folder(self) -> Attributes:
        """`.hibali` below the root, 0700 when we make it."""
        full = self._beneath.full(OWN)
        made = self._client.ask_make_folder(full, 0o700)
        look = self._client.ask_stat(full)
        refused = self._client.settle([made])
        try:
            found = self._client.attributes_of(look)
        except StatusError as problem:
            if problem.code != wire.NO_SUCH_FILE or refused is None:
                raise
            # It cannot be made, or another's went with their lock between the two questions.
            self._unmade = refused
            raise (problem if refused.code == wire.FAILURE else refused) from None
        if kind_of(found) is not Kind.FOLDER:
            raise self._refused("reserved-name", "is no folder, and hibali needs the name")
        return found

    def _refused(self, code: str, what: str) -> RefusedError:
        return RefusedError(code, f"`.hibali` there {what}", subject=self._client.where)

    def _appear(self) -> bool:
        """Put our record under the lock's name, where nothing stands; False where something does."""
        linked = self._client.ask_link(self._beneath.full(self._part), self._beneath.full(_LOCK))
        if linked is not None:
            refused = self._client.settle([linked])
            if refused is None:
                return True
            if refused.code == wire.NO_SUCH_FILE:
                raise refused
            if refused.code == wire.FAILURE and self._own.read(_LOCK) is not None:
                return False
        try:
            self._own.write(_LOCK, self._record)
        except StatusError as problem:
            if problem.code != wire.FAILURE:
                raise
            return False
        return True

    def _replace_dead(self, mine: Attributes) -> bool:
        """Put our record over a lock whose holder is gone; the marker lets one at a time do so. Raises "locked"."""
        found = self._own.read(_LOCK)
        if found is None:
            return False
        holder = record_of(found[0])
        age = (mine.seconds or 0) - (found[1].seconds or 0) - _GRAIN
        if not is_free(holder, age):
            self._locked(holder)
        token = str(holder.get("token")).encode("utf-8", "replace")
        marker = OWN + b"/broken." + hashlib.sha256(token).hexdigest()[:32].encode("ascii")
        try:
            self._own.write(marker, b"")
        except StatusError:
            left = self._own.read(marker)
            if left is not None and (mine.seconds or 0) - (left[1].seconds or 0) > _REPLACING_SECONDS:
                self._own.remove(marker)
            self._locked(holder)
        try:
            again = self._own.read(_LOCK)
            if again is None or record_of(again[0]).get("token") != holder.get("token"):
                return False
            if not self._client.offers(b"posix-rename@openssh.com"):
                self._own.remove(_LOCK)
            self._own.rename(self._part, _LOCK)
        finally:
            self._own.remove(marker)
        return True

    def clock(self) -> int:
        """Now by the server, or not long ago: when the lock was written last. Raises `StatusError`."""
        found = self._own.read(_LOCK)
        return 0 if found is None else found[1].seconds or 0

    def _locked(self, holder: dict[str, Any]) -> NoReturn:
        raise locked(holder, self._client.where)

    def _sweep(self) -> None:
        """Remove what others left who were killed at taking the lock; who is at it now begins again."""
        with contextlib.suppress(StatusError):
            for name in [one.name for one in listed_names(self._client, self._beneath.full(OWN))]:
                if protocol.is_lock_part(name):
                    self._own.remove(OWN + b"/" + name)

    def check(self) -> None:
        """Raise `TryLaterError("lease-lost")` unless the lock is still ours and was renewed in time."""
        late = time.monotonic() - self._renewed > self._seconds * 0.75
        if self._ended.is_set() or late or not self._is_ours():
            raise TryLaterError(
                "lease-lost",
                "the lock on the target was lost; nothing more is written",
                subject=self._client.where,
                hint="Type the same line again.",
                transient=False,
            )

    def _is_ours(self) -> bool:
        try:
            found = self._own.read(_LOCK)
        except StatusError:
            return False
        return found is not None and record_of(found[0]).get("token") == self._token

    def _renew(self) -> None:
        """Writing the record again moves its time by the far clock, ours may differ from it."""
        while not self._ended.wait(self._seconds / 6):
            with contextlib.suppress(HibaliError, StatusError):
                began = time.monotonic()
                self.check()
                if self._own.refresh(_LOCK, self._record):
                    self._renewed = began

    def stop(self) -> None:
        """Renew no more."""
        self._ended.set()
        self._thread.join()

    def release(self) -> None:
        """See Lock. Left to run out where it may have become another's."""
        if self._ended.is_set():
            return
        with contextlib.suppress(HibaliError, StatusError):
            self.check()
            self.stop()
            if self._is_ours():
                self._client.ask_remove(self._beneath.full(_LOCK)).wait()
                # A journal for the next run, or a user's own files, may stay.
                self._client.ask_remove_folder(self._beneath.full(OWN)).wait()
        self.stop()
        let_go(self._token)


def locked(holder: dict[str, Any], where: str) -> TryLaterError:
    """Somebody is at work there: whoever the lock names."""
    who = printable(str(holder.get("client") or "somewhere")[:200])
    process, host = (printable(str(holder.get(word))[:200]) for word in ("pid", "host"))
    doing = printable(str(holder.get("operation") or "an operation")[:50])
    return TryLaterError(
        "locked",
        f"the target is held by {doing} from {who} (process {process} on {host})",
        subject=where,
        hint=f"Wait for it; the lock of a dead holder ends by itself within {seconds_of(holder):.0f} s.",
        transient=False,
    )


def living_holder(own: Own, clock: int) -> dict[str, Any] | None:
    """Who holds the lock at that root, by the server's `clock`; None where nobody can be at work, or it is another account's."""
    try:
        found = own.read(_LOCK)
    except StatusError:
        return None
    if found is None or (found[1].user is not None and own.user not in {None, found[1].user}):
        return None
    holder = record_of(found[0])
    age = clock - (found[1].seconds or 0) - _GRAIN
    return None if is_free(holder, age) else holder
