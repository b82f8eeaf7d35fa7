"""Hold a lease on a target at a server without an agent (S6): the rules that are common to such stores.

The lock is a small file or object with a JSON record: the holder, its process, and the lease time in seconds
after the last renewal. Each store implements the operations: create it exclusively, read it with its age by
the server's clock, replace it only if it is unchanged since it was read, and remove it. At sites with an
agent, transfers.agent.lease applies the same rules to the same file.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import secrets
import threading
import time
from abc import abstractmethod
from typing import Any, NamedTuple

from hibali.errors import HibaliError, RefusedError
from transfers.agent.lease import has_ended, this_process
from transfers.agent.protocol import LEASE_SECONDS, NO_LOCK_FILE, seconds_of
from transfers.model.leases import locked, lost_lease, this_client
from transfers.model.store import Lock

_ATTEMPTS = 5  # attempts for a lock that was released or changed between two requests
_RENEWALS = 6  # per lease time
_SURE = 0.75  # fraction of the lease time during which an unrenewed lease is certainly ours
_MOST_SEEDS = 800  # fit into one read at any server

_released: set[str] = set()  # tokens of locks that this process released


class Held(NamedTuple):
    """The record of an existing lock, and its age in seconds by the server's clock, if known."""

    holder: dict[str, Any]
    age: float | None
    tag: str = ""  # the server's version tag, if any

    @property
    def free(self) -> bool:
        """Whether the lock is stale: expired by the server's clock, process ended, or released by us."""
        ran_out = self.age is not None and self.age > seconds_of(self.holder)
        return ran_out or has_ended(self.holder) or self.holder.get("token") in _released


def no_lock_file(subject: str) -> RefusedError:
    """Return the error for a folder, FIFO or link with the name of the lock."""
    return RefusedError("reserved-name", NO_LOCK_FILE, subject=subject)


class NoLease(Lock):
    """The lock of a server without lock support; it does nothing."""

    held = False

    def finish(self) -> None:
        """See Lock."""

    def release(self) -> None:
        """See Lock."""

    def check(self, *, now: bool = False) -> None:
        """Do nothing: no lease can be lost."""


class Lease(Lock):
    """A lease, held from construction to `release`; a separate thread renews it."""

    check_seconds = 1.0  # minimum time between requests of `check` without `now`

    def __init__(self, subject: str, operation: str, seconds: int = LEASE_SECONDS, token: str = "") -> None:
        """Take the lock; a stale one, or one with this token, is taken over (see `Held.free`).

        Subclasses set their attributes before they call this. Raises `TryLaterError("locked")` with the
        holder.
        """
        self._subject = subject
        self._seconds = seconds
        self._token = token or secrets.token_hex(16)
        self._record: dict[str, Any] = {
            "version": 1,
            "operation": operation,
            "client": this_client(),
            "token": self._token,
            "lease": seconds,
            **this_process(),
        }
        self._renewed = time.monotonic()
        self._lost = False
        self._ended = threading.Event()
        self._acquire()
        self._checked = time.monotonic()
        self._thread = threading.Thread(target=self._renew_periodically, name="lease", daemon=True)
        self._thread.start()

    @property
    def token(self) -> str:
        """What identifies this lock to other machines of the same operation."""
        return self._token

    @abstractmethod
    def _create(self) -> bool:
        """Create the lock with our record; return False if one exists or its folder was removed meanwhile."""

    @abstractmethod
    def _read(self) -> Held | None:
        """Read the lock; return None if it does not exist."""

    @abstractmethod
    def _replace(self, found: Held) -> bool:
        """Take over a stale lock; return False if it changed at the same time, or if `_create` is needed."""

    @abstractmethod
    def _renew(self) -> bool:
        """Renew the lock at the server; return False if another client has it now."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the lock, which was just verified as ours."""

    def _acquire(self) -> None:
        holder: dict[str, Any] = {}
        for _ in range(_ATTEMPTS):
            self._renewed = time.monotonic()  # not later than the server's timestamp
            if self._create():
                return
            found = self._read()
            if found is None:
                continue
            holder = found.holder
            if not found.free:
                break
            if self._replace(found):
                return
        raise self._refusal(holder)

    def _refusal(self, holder: dict[str, Any]) -> HibaliError:
        """Return the error for a lock that cannot be taken."""
        return locked(holder, self._subject)

    def _is_held(self) -> bool:
        """Query the server whether the lock is ours."""
        found = self._read()
        return found is not None and found.holder.get("token") == self._token

    def _renew_periodically(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            began = time.monotonic()
            with contextlib.suppress(HibaliError):  # retried until the lease may have expired
                if not self._renew():
                    self._lost = True
                    return
                self._renewed = began

    @property
    def _sure(self) -> bool:
        return not self._lost and time.monotonic() - self._renewed < self._seconds * _SURE

    @property
    def held(self) -> bool:
        """Whether the lock is not released and not known to be lost."""
        return not (self._lost or self._ended.is_set())

    def check(self, *, now: bool = False) -> None:
        """Raise `TryLaterError("lease-lost")` if the lease may no longer be ours.

        This queries the server if `now`, or if the last query is older than `check_seconds`.
        """
        if self.held and (now or time.monotonic() - self._checked >= self.check_seconds):
            self._checked = time.monotonic()
            if not self._is_held():
                self._lost = True
        if not (self.held and self._sure):
            raise lost_lease(self._subject)

    def finish(self) -> None:
        """See Lock."""
        self.check(now=True)
        self.release()

    def release(self) -> None:
        """See Lock. The lock is left to expire if it may belong to another client."""
        if self._ended.is_set():
            return
        sure = self._sure
        self._ended.set()
        self._thread.join(self._seconds / 4)
        try:
            with contextlib.suppress(HibaliError):
                if sure and self._is_held():
                    self._remove()
        finally:
            # Not before: another lease of this process would take the lock over, and lose it to that removal.
            _released.add(self._token)


def seeds_in(journal: bytes | None) -> list[bytes]:
    """Return the seeds of partial names in a target's journal (unfinished operations), newest first."""
    try:
        return [binascii.unhexlify(seed) for seed in json.loads(journal or b"")["seeds"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def journal_of(seeds: list[bytes]) -> bytes:
    """Return a journal with these seeds (newest first), without the oldest beyond `_MOST_SEEDS`."""
    noted = [seed.hex() for seed in seeds[:_MOST_SEEDS]]
    return json.dumps({"version": 1, "seeds": noted}).encode("ascii") + b"\n"
